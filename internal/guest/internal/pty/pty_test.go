package pty

import (
	"bufio"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func open(t *testing.T, cols, rows int) *PTY {
	t.Helper()
	p, err := Open(cols, rows)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// bash runs a script as the session leader of the terminal until the end of the test.
func bash(t *testing.T, p *PTY, script string) *exec.Cmd {
	t.Helper()
	testenv.Need(t, "bash", "stty")
	cmd := exec.Command("bash", "--norc", "-c", script)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = p.Slave(), p.Slave(), p.Slave()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if err := p.CloseSlave(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		p.Close()
		cmd.Wait()
	})
	return cmd
}

// expect reads lines until one equals want.
func expect(t *testing.T, in *bufio.Reader, want string) {
	t.Helper()
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			t.Fatalf("got %v, want line %q", err, want)
		}
		if strings.TrimRight(line, "\r\n") == want {
			return
		}
	}
}

func TestSize(t *testing.T) {
	t.Parallel()
	p := open(t, 91, 37)
	p.Master().SetReadDeadline(time.Now().Add(time.Minute))
	in := bufio.NewReader(p)
	bash(t, p, `stty size; trap 'stty size' WINCH; echo ready; sleep 60 & wait`)
	expect(t, in, "37 91")
	expect(t, in, "ready")
	if err := p.Resize(120, 40); err != nil {
		t.Fatal(err)
	}
	if cols, rows, err := p.Size(); cols != 120 || rows != 40 || err != nil {
		t.Errorf("got size %d, %d, %v, want 120 columns and 40 rows", cols, rows, err)
	}
	expect(t, in, "40 120")
	for _, bad := range [][2]int{{0, 1}, {1, 0}, {-1, 5}, {1 << 16, 5}, {5, 1 << 16}} {
		if err := p.Resize(bad[0], bad[1]); err == nil {
			t.Errorf("Resize(%d, %d): got no error, want one", bad[0], bad[1])
		}
		if p, err := Open(bad[0], bad[1]); err == nil {
			p.Close()
			t.Errorf("Open(%d, %d): got no error, want one", bad[0], bad[1])
		}
	}
}

func TestModeFollowsTheProgram(t *testing.T) {
	t.Parallel()
	p := open(t, 80, 24)
	p.Master().SetReadDeadline(time.Now().Add(time.Minute))
	in := bufio.NewReader(p)
	check := func(want Mode) {
		t.Helper()
		if got, err := p.Mode(); got != want || err != nil {
			t.Errorf("got mode %+v, %v, want %+v", got, err, want)
		}
	}
	check(Mode{Echo: true, Canonical: true, Signals: true})
	bash(t, p, `stty -echo; echo password; read; stty raw; printf 'raw\n'; head -c 1 >/dev/null; stty sane; echo sane; read`)
	expect(t, in, "password")
	check(Mode{Canonical: true, Signals: true})
	p.Write([]byte("\r"))
	expect(t, in, "raw")
	check(Mode{})
	p.Write([]byte("x"))
	expect(t, in, "sane")
	check(Mode{Echo: true, Canonical: true, Signals: true})
}

func TestForeground(t *testing.T) {
	t.Parallel()
	p := open(t, 80, 24)
	p.Master().SetReadDeadline(time.Now().Add(time.Minute))
	if got, err := p.Foreground(); got != 0 || err != nil {
		t.Errorf("got %d, %v without a session, want 0", got, err)
	}
	in := bufio.NewReader(p)
	cmd := bash(t, p, `set -m; echo start; read; bash -c 'echo child $$; read'; echo back; read`)
	expect(t, in, "start")
	if got, err := p.Foreground(); got != cmd.Process.Pid || err != nil {
		t.Errorf("got %d, %v without a job, want %d", got, err, cmd.Process.Pid)
	}
	p.Write([]byte("\r"))
	line, err := in.ReadString('\n')
	for err == nil && !strings.HasPrefix(line, "child ") {
		line, err = in.ReadString('\n')
	}
	if err != nil {
		t.Fatal(err)
	}
	child := strings.TrimSpace(strings.TrimPrefix(line, "child "))
	if got, err := p.Foreground(); err != nil || child != strconv.Itoa(got) {
		t.Errorf("got %d, %v while a job runs, want %s", got, err, child)
	}
	p.Write([]byte("\r"))
	expect(t, in, "back")
	if got, err := p.Foreground(); got != cmd.Process.Pid || err != nil {
		t.Errorf("got %d, %v after the job, want %d", got, err, cmd.Process.Pid)
	}
}

func TestReadEndsWithTheLastProcess(t *testing.T) {
	t.Parallel()
	p := open(t, 80, 24)
	bash(t, p, `echo hello`)
	p.Master().SetReadDeadline(time.Now().Add(time.Minute))
	if got, err := io.ReadAll(p); string(got) != "hello\r\n" || err != nil {
		t.Errorf(`got %q, %v, want "hello\r\n"`, got, err)
	}
}

// TestReadCanBeInterrupted also checks that requests to the kernel do not make the master
// blocking.
func TestReadCanBeInterrupted(t *testing.T) {
	t.Parallel()
	p := open(t, 80, 24)
	p.Resize(81, 25)
	p.Size()
	p.Mode()
	p.Foreground()
	p.Master().SetReadDeadline(time.Now().Add(-time.Second))
	if _, err := p.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("got %v after the deadline, want os.ErrDeadlineExceeded", err)
	}
	p.Master().SetReadDeadline(time.Time{})
	result := make(chan error)
	go func() {
		_, err := p.Read(make([]byte, 1))
		result <- err
	}()
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	if err := <-result; !errors.Is(err, os.ErrClosed) {
		t.Errorf("got %v after Close, want os.ErrClosed", err)
	}
	if err := errors.Join(p.Close(), p.CloseSlave()); err != nil {
		t.Errorf("got %v from the second Close, want no error", err)
	}
	for name, err := range map[string]error{
		"Resize": p.Resize(1, 1),
		"Mode":   func() error { _, err := p.Mode(); return err }(),
		"Own":    p.Own(0, 0),
	} {
		if !errors.Is(err, os.ErrClosed) {
			t.Errorf("%s after Close: got %v, want os.ErrClosed", name, err)
		}
	}
}

func TestWriteCanBeInterrupted(t *testing.T) {
	t.Parallel()
	p := open(t, 80, 24)
	result := make(chan error)
	go func() { // no process reads the input, so its queue fills
		for {
			if _, err := p.Write([]byte(strings.Repeat("x\n", 1000))); err != nil {
				result <- err
				return
			}
		}
	}()
	p.Master().SetWriteDeadline(time.Now().Add(10 * time.Millisecond))
	if err := <-result; !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("got %v, want os.ErrDeadlineExceeded", err)
	}
}

func TestDescriptors(t *testing.T) {
	t.Parallel()
	p := open(t, 80, 24)
	for _, c := range []struct {
		f        *os.File
		blocking bool
	}{{p.Master(), false}, {p.Slave(), true}} {
		err := control(c.f, func(fd int) error {
			fl, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
			if blocking := fl&unix.O_NONBLOCK == 0; blocking != c.blocking {
				t.Errorf("%s: got blocking %v, want %v", c.f.Name(), blocking, c.blocking)
			}
			if fd, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); fd&unix.FD_CLOEXEC == 0 {
				t.Errorf("got %s with flags %#x, %v, want it closed on exec", c.f.Name(), fd, err)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
	if real, err := filepath.EvalSymlinks(p.Name()); err != nil || real != p.Name() {
		t.Errorf("got device %s, %v, want %q", real, err, p.Name())
	}
}

func TestOwn(t *testing.T) {
	t.Parallel()
	testenv.NeedRoot(t)
	p := open(t, 80, 24)
	if err := p.Own(12345, 23456); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(p.Name())
	if err != nil {
		t.Fatal(err)
	}
	if st := info.Sys().(*syscall.Stat_t); st.Uid != 12345 || st.Gid != 23456 {
		t.Errorf("got %d:%d, want owner 12345 and group 23456", st.Uid, st.Gid)
	}
}

func TestDropInput(t *testing.T) {
	p := open(t, 80, 24)
	if _, err := p.Write([]byte("dropped\n")); err != nil {
		t.Fatal(err)
	}
	// The echo shows that the input has arrived.
	echo := bufio.NewReader(p)
	if line, err := echo.ReadString('\n'); line != "dropped\r\n" {
		t.Fatalf(`got %q, %v, want "dropped\r\n"`, line, err)
	}
	if err := p.DropInput(); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Write([]byte("kept\n")); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(p.Slave()).ReadString('\n'); line != "kept\n" {
		t.Errorf(`got %q, %v, want "kept\n"`, line, err)
	}
}
