// Package e2e drives the real programs as a user would: one file per story.
package e2e

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/testenv"
)

var aio string // the program under test

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "cove-e2e-")
	if err != nil {
		panic(err)
	}
	aio = filepath.Join(dir, "aio")
	build := exec.Command("go", "build", "-o", aio, "../../cmd/aio")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "%s", out)
		os.Exit(1)
	}
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// server is one running aio serve.
type server struct {
	URL  string
	Home string
	cmd  *exec.Cmd
	log  *output
	done chan struct{}
}

// output is written by the program while the test reads.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// environment of a program under test: nothing of ours but what it needs.
func environment(home string, extra []string) []string {
	return append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + home}, extra...)
}

// serve starts aio serve on a port of its own; env are KEY=value pairs.
func serve(t *testing.T, env ...string) *server {
	t.Helper()
	home := t.TempDir()
	s := &server{Home: home, log: &output{}, done: make(chan struct{})}
	s.cmd = exec.Command(aio, "serve", "--listen", "127.0.0.1:0", "--log-level", "warn")
	s.cmd.Env = environment(home, env)
	s.cmd.Stdout, s.cmd.Stderr = s.log, s.log
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { s.cmd.Wait(); close(s.done) }()
	t.Cleanup(func() { s.stop(t) })
	testenv.Poll(t, "the server's address", func() bool {
		_, rest, ok := strings.Cut(s.log.String(), "serving on ")
		if ok {
			s.URL, _, _ = strings.Cut(rest, "\n")
		}
		select {
		case <-s.done:
			t.Fatalf("the server ended: %s", s.log)
		default:
		}
		return ok && strings.Contains(rest, "\n")
	})
	return s
}

// stop ends the server gracefully; a second stop does nothing.
func (s *server) stop(t *testing.T) {
	t.Helper()
	s.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-s.done:
	case <-time.After(30 * time.Second):
		s.cmd.Process.Kill()
		<-s.done
		t.Errorf("the server did not stop: %s", s.log)
	}
}

func (s *server) addr() string { return strings.TrimPrefix(s.URL, "http://") }

// get returns the status and body of a path.
func (s *server) get(t *testing.T, path string) (int, string) {
	t.Helper()
	res, err := http.Get(s.URL + path)
	if err != nil {
		t.Fatal(err)
	}
	return read(t, res)
}

func (s *server) post(t *testing.T, path, body string) (int, string) {
	t.Helper()
	res, err := http.Post(s.URL+path, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	return read(t, res)
}

func read(t *testing.T, res *http.Response) (int, string) {
	t.Helper()
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(b)
}

// run runs the program to its end.
func run(t *testing.T, env []string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, aio, args...)
	cmd.Env = environment(t.TempDir(), env)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// raw sends bytes as they are and returns the reply, empty when there is none.
func raw(t *testing.T, addr, request string) string {
	t.Helper()
	c, err := net.DialTimeout("tcp", addr, 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(10 * time.Second))
	go io.WriteString(c, request)
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return ""
	}
	defer res.Body.Close()
	dump, err := httputil.DumpResponse(res, true)
	if err != nil {
		return ""
	}
	return string(dump)
}
