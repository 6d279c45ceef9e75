package e2e

import (
	"strings"
	"testing"
)

// A program in the sandbox cannot replace the sandbox's server, even as root: the folder of its socket
// is read-only, and the hub ignores mounts over that folder.
func TestServerCannotBeReplaced(t *testing.T) {
	t.Parallel()
	h := serveHub(t)
	h.must(t, "create", "a")
	const impostor = `import os, socket
try:
    os.unlink("/run/aio/aio.sock")
except OSError as e:
    print("unlink:", e.strerror)
s = socket.socket(socket.AF_UNIX)
try:
    s.bind("/run/aio/aio.sock")
    s.listen()
    open("/home/gem/bound", "w").close()
    c, _ = s.accept()
    open("/home/gem/asked", "w").close()
    c.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nimpostor")
except OSError as e:
    print("bind:", e.strerror)
open("/home/gem/over", "w").close()
`
	h.must(t, "exec", "a", "cat > impostor.py <<'EOF'\n"+impostor+"EOF\n"+
		"setsid python3 impostor.py > user.log 2>&1 &\n(sudo -n sh -c 'mount -t tmpfs none /run/aio; exec setsid "+
		"python3 /home/gem/impostor.py' > root.log 2>&1 || true) &\nwhile [ ! -e over ] && [ ! -e bound ]; do sleep 0.1; done")
	// Each request uses a new connection, because more run concurrently than the hub keeps idle connections.
	done := make(chan string)
	for range 20 {
		go func() {
			_, body := h.post(t, "/sandbox/a/v1/bash/exec", `{"command":"echo the real one; sleep 0.2"}`)
			done <- body
		}()
	}
	for range 20 {
		if body := <-done; !strings.Contains(body, "the real one") {
			t.Errorf("got %s, want the output of the command", body)
		}
	}
	if out := h.must(t, "exec", "a", "ls; cat *.log"); strings.Contains(out, "asked") {
		t.Errorf("the impostor got a request, want none: %s", out)
	}
}
