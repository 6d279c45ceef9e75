// Package e2e runs the real programs as a user would: one file per story.
package e2e

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/test/attack"
)

var aio, cove string // the programs under test

// patience is the timeout of operations that are fast on an idle machine and slow on a busy one.
const patience = 2 * time.Minute

func TestMain(m *testing.M) {
	testenv.MainWithPrograms(m, "../..", func(dir string) {
		aio, cove = filepath.Join(dir, "aio"), filepath.Join(dir, "cove")
	})
}

// server is one running program.
type server struct {
	URL  string
	Home string
	cmd  *exec.Cmd
	log  *output
	done chan struct{}
}

// output collects the output of a program and can be read concurrently.
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

// environment returns the variables of a program under test: only the required ones of this process.
func environment(home string, extra []string) []string {
	return append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + home}, extra...)
}

// serve starts aio serve on a free port; env are KEY=value pairs.
func serve(t *testing.T, env ...string) *server {
	t.Helper()
	s := launch(t, aio, []string{"serve", "--listen", "127.0.0.1:0", "--log-level", "warn"}, t.TempDir(), env)
	t.Cleanup(func() { s.stop(t) })
	return s
}

// stop ends the server gracefully; a second stop does nothing.
func (s *server) stop(t *testing.T) {
	t.Helper()
	s.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-s.done:
	case <-time.After(patience):
		s.cmd.Process.Kill()
		<-s.done
		t.Errorf("the server did not stop within %v: %s", patience, s.log)
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
	ctx, cancel := context.WithTimeout(t.Context(), patience)
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

// raw sends unmodified bytes and returns the reply, which is empty if there is none.
func raw(t *testing.T, addr, request string) string {
	t.Helper()
	c, err := net.DialTimeout("tcp", addr, patience)
	if err != nil {
		t.Fatal(err)
	}
	return attack.Raw(t, c, request)
}
