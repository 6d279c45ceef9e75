package e2e

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// follow runs a command until the test ends it, and returns its output by lines.
func (h *hub) follow(t *testing.T, args ...string) (lines *bufio.Reader, interrupt func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	cmd := exec.CommandContext(ctx, cove, args...)
	cmd.Env = environment(t.TempDir(), h.env)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := false
	interrupt = func() error {
		ended = true
		defer cancel()
		if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
			return err
		}
		io.Copy(io.Discard, out)
		return cmd.Wait()
	}
	t.Cleanup(func() {
		if !ended {
			interrupt()
		}
	})
	return bufio.NewReader(out), interrupt
}

// exitCode returns the exit code of a program that ended with an error; -1 without one.
func exitCode(err error) int {
	if e, ok := errors.AsType[*exec.ExitError](err); ok {
		return e.ExitCode()
	}
	return -1
}

// A user runs a single command without managing sandboxes.
func TestRunOnce(t *testing.T) {
	t.Parallel()
	testenv.Need(t, "python3")
	h := serveHub(t)
	if out, errs, code := h.cove(t, "typed", "run", "-i", "-e", "COLOUR=blue", "--workdir", "/tmp", "--", "sh", "-c",
		`cat; echo " $COLOUR $PWD"; echo aside >&2; exit 7`); out != "typed blue /tmp\n" || errs != "aside\n" || code != 7 {
		t.Errorf("got %q, %q and exit code %d, want the output of the command and 7", out, errs, code)
	}
	dir := t.TempDir()
	script := filepath.Join(dir, "my script.py")
	if err := os.WriteFile(script, []byte("import sys\nprint('ran', sys.argv[1:], sum(range(10)))\nsys.exit(3)\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, errs, code := h.cove(t, "", "run", script, "two words", "--flag"); out != "ran ['two words', '--flag'] 45\n" || code != 3 {
		t.Errorf("got %q, %q and exit code %d, want the script's output and 3", out, errs, code)
	}
	if out, errs, code := h.cove(t, "", "run", "--image", "no/such:image@", "--", "true"); code == 0 {
		t.Errorf("got %q, %q and exit code %d, want a failure", out, errs, code)
	}
	if out := h.must(t, "list", "-q"); out != "" {
		t.Errorf("got sandboxes %q after the runs, want none", out)
	}
	// A background command that cannot start leaves no sandbox, whose name the user would not know.
	for _, option := range []string{"--workdir=/none", "--env==value"} {
		if out, errs, code := h.cove(t, "", "run", "-d", option, "--", "true"); code == 0 || out != "" {
			t.Errorf("%s: got %q, %q and exit code %d, want a failure", option, out, errs, code)
		}
	}
	if out := h.must(t, "list", "-q"); out != "" {
		t.Errorf("got sandboxes %q after runs that cannot start, want none", out)
	}
	// A named sandbox is kept unless --rm is set.
	if out := h.must(t, "run", "--name", "kept", "--", "echo here > note"); out != "" {
		t.Errorf("got %q, want nothing", out)
	}
	if out := h.must(t, "exec", "kept", "cat note"); out != "here\n" {
		t.Errorf("got %q, want the note", out)
	}
	h.must(t, "run", "--name", "gone", "--rm", "--", "true")
	if out := h.must(t, "list", "-q"); out != "kept\n" {
		t.Errorf("got sandboxes %q, want kept", out)
	}
	// In a terminal, instead of its shell.
	if out, errs, code := h.cove(t, "", "run", "-it", "--rm", "--",
		"test -t 0 && echo is a terminal; exit 5"); !strings.Contains(out, "is a terminal") || code != 5 {
		t.Errorf("got %q, %q and exit code %d, want a terminal and 5", out, errs, code)
	}
	if out := h.must(t, "list", "-q"); out != "kept\n" {
		t.Errorf("got sandboxes %q, want kept", out)
	}
	// An interrupted run also cleans up.
	lines, interrupt := h.follow(t, "run", "--", "echo begun; sleep 1000")
	if line, err := lines.ReadString('\n'); line != "begun\n" {
		t.Errorf("got %q and error %v, want begun", line, err)
	}
	if err := interrupt(); exitCode(err) != 130 {
		t.Errorf("got %v after an interrupt, want exit code 130", err)
	}
	if out := h.must(t, "list", "-q"); out != "kept\n" {
		t.Errorf("got sandboxes %q after an interrupt, want kept", out)
	}
}

// A local user reaches a service of a sandbox with any protocol.
func TestPortForward(t *testing.T) {
	t.Parallel()
	testenv.Need(t, "python3")
	h := serveHub(t)
	h.must(t, "create", "a")
	const service = `
import socket, threading
def serve(c):
    data = b''
    while True:
        part = c.recv(65536)
        if not part: break
        data += part
    c.sendall(data[::-1]); c.close()
s = socket.create_server(('127.0.0.1', 7000)); print('up', flush=True)
while True: threading.Thread(target=serve, args=(s.accept()[0],)).start()
`
	if _, errs, code := h.cove(t, service, "cp", "-", "a:service.py"); code != 0 {
		t.Fatalf("got %q and exit code %d, want 0", errs, code)
	}
	up, _ := h.follow(t, "exec", "a", "--", "python3 service.py")
	if line, err := up.ReadString('\n'); line != "up\n" {
		t.Fatalf("got %q and error %v, want up", line, err)
	}
	lines, interrupt := h.follow(t, "port-forward", "a", "0:7000", "0:7001")
	line, err := lines.ReadString('\n')
	address := strings.TrimSuffix(strings.TrimPrefix(line, "forwarding "), " to port 7000\n")
	if err != nil || address == line {
		t.Fatalf("got %q and error %v, want an address", line, err)
	}
	// The service responds after its client closes its side of the connection.
	big := strings.Repeat("0123456789", 100_000)
	for range 3 {
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			io.WriteString(c, big)
			c.(*net.TCPConn).CloseWrite()
		}()
		b, err := io.ReadAll(c)
		if err != nil || len(b) != len(big) || b[0] != '9' {
			t.Errorf("got %d bytes and error %v, want %d in reverse", len(b), err, len(big))
		}
		c.Close()
	}
	line, err = lines.ReadString('\n')
	closed := strings.TrimSuffix(strings.TrimPrefix(line, "forwarding "), " to port 7001\n")
	if err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("tcp", closed)
	if err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(c); len(b) > 0 {
		t.Errorf("got %q and error %v from a port without a listener, want nothing", b, err)
	}
	c.Close()
	if err := interrupt(); exitCode(err) != 130 {
		t.Errorf("got %v after an interrupt, want exit code 130", err)
	}
	if _, errs, code := h.cove(t, "", "port-forward", "a", "x"); code != 2 || !strings.Contains(errs, "LOCAL:PORT") {
		t.Errorf("got %q and exit code %d, want 2", errs, code)
	}
}

// A user follows the log of a sandbox until it is deleted.
func TestLogsFollow(t *testing.T) {
	t.Parallel()
	h := serveHub(t)
	h.must(t, "create", "a", "--env", "AIO_LOG_LEVEL=info")
	lines, _ := h.follow(t, "logs", "-f", "a")
	if line, err := lines.ReadString('\n'); !strings.Contains(line, "serving on") {
		t.Errorf("got %q and error %v, want a line of the log", line, err)
	}
	h.must(t, "stop", "a")
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			t.Fatalf("got error %v, want another line of the log", err)
		}
		if strings.Contains(line, "msg=stopping") {
			break
		}
	}
	h.must(t, "rm", "a")
	if _, err := io.ReadAll(lines); err != nil {
		t.Errorf("got %v, want the end of the log", err)
	}
}

// A project contains the definition of its sandbox.
func TestUp(t *testing.T) {
	t.Parallel()
	h := serveHub(t)
	if _, errs, code := h.cove(t, "s3cret", "secret", "set", "TOKEN"); code != 0 {
		t.Fatalf("got %q and exit code %d, want 0", errs, code)
	}
	dir := t.TempDir()
	for name, text := range map[string]string{
		"src/main.txt": "main",
		"cove.yaml": `name: shop
env: {STAGE: dev}
files:
  app: ./src
  app/.env: {content: "DEBUG=1"}
secrets: [TOKEN]
ports: [3000]
init:
  - echo "$STAGE $TOKEN" >> started
  - test -e allowed || exit 9
`} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(dir, "cove.yaml")
	if _, errs, code := h.cove(t, "", "up", "-f", file); code != 1 || !strings.Contains(errs, "exit code 9") {
		t.Errorf("got %q and exit code %d, want the failed init command", errs, code)
	}
	h.must(t, "exec", "shop", "touch allowed")
	if out := h.must(t, "up", "-f", file); !strings.HasPrefix(out, "shop\n3000  "+h.URL+"/sandbox/shop/proxy/3000/") {
		t.Errorf("got %q, want the name and the address of the port", out)
	}
	h.must(t, "stop", "shop")
	h.must(t, "up", "-f", file)
	if out := h.must(t, "exec", "shop", "cat started app/main.txt app/.env"); out != "dev s3cret\ndev s3cret\nmainDEBUG=1" {
		t.Errorf("got %q, want two runs of init, and the files", out)
	}
	if out := h.must(t, "down", "-f", file); out != "shop\n" {
		t.Errorf("got %q, want the name", out)
	}
}

// A service of run -p is reachable on this machine while the command runs, and its log can be followed from the last lines.
func TestRunPublishes(t *testing.T) {
	t.Parallel()
	testenv.Need(t, "python3")
	h := serveHub(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, cove, "run", "-p", "0:3000", "--", "echo content > file; exec python3 -u -m http.server 3000")
	cmd.Env = environment(t.TempDir(), h.env)
	errs, err := cmd.StderrPipe()
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
	line, err := bufio.NewReader(errs).ReadString('\n')
	address, _, ok := strings.Cut(strings.TrimPrefix(line, "forwarding "), " to port 3000\n")
	if err != nil || !ok {
		t.Fatalf("got %q and error %v, want an address", line, err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || !strings.Contains(line, "port 3000") {
		t.Fatalf("got %q and error %v, want the server's output", line, err)
	}
	r, err := http.Get("http://" + address + "/file")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	if body, err := io.ReadAll(r.Body); string(body) != "content\n" {
		t.Errorf("got %q and error %v, want the file", body, err)
	}
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	go io.Copy(io.Discard, errs)
	io.Copy(io.Discard, out)
	if err := cmd.Wait(); exitCode(err) != 130 {
		t.Errorf("got %v, want exit code 130", err)
	}
	if c, err := net.Dial("tcp", address); err == nil {
		c.Close()
		t.Error("the port is still open after the run")
	}

	h.must(t, "run", "-d", "--name", "w", "--", "seq 5; until [ -e go ]; do sleep 0.1; done; echo six; exec sleep 1000")
	lines, interrupt := h.follow(t, "logs", "--tail", "2", "-f", "w")
	read := func(want string) {
		t.Helper()
		if line, err := lines.ReadString('\n'); line != want+"\n" {
			t.Errorf("got %q and error %v, want %q", line, err, want)
		}
	}
	read("4")
	read("5")
	h.must(t, "exec", "w", "touch go")
	read("six")
	if err := interrupt(); exitCode(err) != 130 {
		t.Errorf("got %v, want exit code 130", err)
	}
}
