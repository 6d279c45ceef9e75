package x11

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// patience is the timeout of every wait in these tests.
const patience = 2 * time.Minute

// server is the X server of a test.
type server struct {
	display   int
	socket    string
	authority string
	cookie    []byte
	cmd       *exec.Cmd
	waited    chan struct{}
}

// startServer runs Xtigervnc on the first free display and ends it with the test.
func startServer(t testing.TB, args ...string) *server {
	t.Helper()
	testenv.Need(t, "Xtigervnc")
	dir := t.TempDir()
	s := &server{cookie: NewCookie(), authority: filepath.Join(dir, "auth"), waited: make(chan struct{})}
	if err := WriteAuthority(s.authority, 0, s.cookie); err != nil {
		t.Fatal(err)
	}
	ready, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer ready.Close()
	args = append([]string{"-displayfd", "3", "-auth", s.authority, "-geometry", "640x480", "-depth", "24", "-SecurityTypes", "None",
		"-rfbport", "-1", "-nolisten", "tcp", "-noreset"}, args...)
	s.cmd = exec.Command("Xtigervnc", args...)
	s.cmd.ExtraFiles = []*os.File{w}
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	err = s.cmd.Start()
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(s.waited)
		_ = s.cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = syscall.Kill(-s.cmd.Process.Pid, syscall.SIGCONT)
		_ = syscall.Kill(-s.cmd.Process.Pid, syscall.SIGTERM)
		s.kill()
	})
	_ = ready.SetReadDeadline(time.Now().Add(patience))
	line, err := bufio.NewReader(ready).ReadString('\n')
	if err != nil {
		t.Fatalf("Xtigervnc did not start: %v", err)
	}
	if s.display, err = strconv.Atoi(strings.TrimSpace(line)); err != nil {
		t.Fatal(err)
	}
	s.socket = fmt.Sprintf("/tmp/.X11-unix/X%d", s.display)
	if err := WriteAuthority(s.authority, s.display, s.cookie); err != nil {
		t.Fatal(err)
	}
	return s
}

// kill kills the server if it does not end soon, and removes the files of a killed server.
func (s *server) kill() {
	select {
	case <-s.waited:
	case <-time.After(2 * time.Second):
		_ = s.cmd.Process.Kill()
		<-s.waited
	}
	// Another test's server may have the same number by now.
	lock := fmt.Sprintf("/tmp/.X%d-lock", s.display)
	if pid, err := os.ReadFile(lock); err == nil && strings.TrimSpace(string(pid)) == strconv.Itoa(s.cmd.Process.Pid) {
		os.Remove(s.socket)
		os.Remove(lock)
	}
}

// env returns the environment for programs on the display.
func (s *server) env() []string {
	return append(os.Environ(), fmt.Sprintf("DISPLAY=:%d", s.display), "XAUTHORITY="+s.authority, "LC_ALL=C.UTF-8")
}

func (s *server) config() Config { return Config{Socket: s.socket, Cookie: s.cookie} }

// dial opens a connection that is closed at the end of the test.
func (s *server) dial(t testing.TB) *Conn {
	t.Helper()
	c, err := Dial(testContext(t), s.config())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
