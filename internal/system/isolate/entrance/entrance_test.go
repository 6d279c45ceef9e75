package entrance

import (
	"bufio"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// serveAt starts a process that listens at a unix socket and replaces an existing one.
func serveAt(t *testing.T, path string) *exec.Cmd {
	t.Helper()
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	cmd := exec.Command("python3", "-c",
		"import socket, sys\ns = "+
			"socket.socket(socket.AF_UNIX)\ns.bind(sys.argv[1])\ns.listen()\nprint('listening', flush=True)\nsys.stdin.read()", path)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { in.Close(); cmd.Process.Kill(); cmd.Wait() })
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatalf("got %q, %v, want a process that listens", line, err)
	}
	return cmd
}

// TestImpostorAtTheServersSocket: while the server runs, a process that replaces its socket gets no
// connection. When it has ended, its successor does.
func TestImpostorAtTheServersSocket(t *testing.T) {
	t.Parallel()
	testenv.Need(t, "python3")
	path := filepath.Join(t.TempDir(), "s")
	e := New(path)
	dial := func() error {
		c, err := e.Dial(t.Context())
		if err == nil {
			c.Close()
		}
		return err
	}
	server := serveAt(t, path)
	for range 2 {
		if err := dial(); err != nil {
			t.Fatal(err)
		}
	}
	serveAt(t, path)
	if err := dial(); !errors.Is(err, ErrImpostor) {
		t.Errorf("with another process at the socket: got %v, want %v", err, ErrImpostor)
	}
	server.Process.Kill()
	server.Wait()
	if err := dial(); err != nil {
		t.Errorf("after the end of the server: %v, want a connection to its successor", err)
	}
}
