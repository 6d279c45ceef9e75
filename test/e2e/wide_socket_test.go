package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// endlessServer is a server in a sandbox that upgrades to a WebSocket and sends endlessly. On /hang, it never responds.
const endlessServer = `cat > /tmp/e.py <<'P'
import socket, threading
def serve(c):
    data = c.recv(65536)
    if data.startswith(b"GET /hang"): return c.recv(1)
    c.sendall(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
              b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n")
    frame = b"\x82\x7f" + (1 << 20).to_bytes(8, "big") + b"x" * (1 << 20)
    try:
        while True: c.sendall(frame)
    except OSError: pass
s = socket.create_server(("127.0.0.1", 9000), backlog=1000)
while True: threading.Thread(target=serve, args=(s.accept()[0],), daemon=True).start()
P
setsid python3 /tmp/e.py > /dev/null 2>&1 &
while ! python3 -c 'import socket; socket.create_connection(("127.0.0.1", 9000))' 2>/dev/null; do sleep 0.1; done`

// hold opens a connection to the hub, sends a request and returns the status of the reply.
func (h *hub) hold(t *testing.T, request string) (c net.Conn, status int) {
	t.Helper()
	c, err := net.DialTimeout("tcp", h.addr(), patience)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetReadDeadline(time.Now().Add(patience))
	io.WriteString(c, request)
	res, err := http.ReadResponse(bufio.NewReaderSize(c, 16), nil)
	if err != nil {
		return c, 0
	}
	return c, res.StatusCode
}

const upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"

// TestWideSocketFlood: a program that sends endlessly to clients that do not read does not increase the hub's memory. A client
// that sends invalid data loses only its own connection.
func TestWideSocketFlood(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	h := tenants(t, nil)
	h.must(t, "create", "a")
	h.must(t, "exec", "a", "--", endlessServer)
	sign := "Host: localhost\r\nAuthorization: Bearer " + h.key + "\r\n"
	before := rss(t, h.server)
	for range 200 {
		if _, status := h.hold(t, "GET /sandbox/a/proxy/9000/ HTTP/1.1\r\n"+sign+upgrade+"\r\n"); status != http.StatusSwitchingProtocols {
			t.Fatalf("got status %d, want 101", status)
		}
	}
	h.verify(t, "a", check{"echo on", "on"})
	if after := rss(t, h.server); after > before+128<<10 {
		t.Errorf("memory with 200 clients that do not read: got %d KiB after %d, want at most 128 MiB more", after, before)
	}
	for name, frame := range map[string]string{
		"huge frame":     "\x81\xff\x7f\xff\xff\xff\xff\xff\xff\xff\x00\x00\x00\x00",
		"negative frame": "\x81\xff\xff\xff\xff\xff\xff\xff\xff\xff\x00\x00\x00\x00",
		"no mask":        "\x81\x05hello",
		"reserved bits":  "\xf1\x80\x00\x00\x00\x00",
		"large control":  "\x89\xfe\x01\x00\x00\x00\x00\x00" + strings.Repeat("x", 256),
	} {
		c, status := h.hold(t, "GET /sandbox/a/v1/shell/ws HTTP/1.1\r\n"+sign+"Origin: http://localhost\r\n"+upgrade+"\r\n")
		if status != http.StatusSwitchingProtocols {
			t.Fatalf("terminal: got status %d, want 101", status)
		}
		io.WriteString(c, frame)
		go func() { // until the peer closes the connection
			for part := strings.Repeat("y", 1<<16); ; {
				if _, err := io.WriteString(c, part); err != nil {
					return
				}
			}
		}()
		if _, err := io.Copy(io.Discard, c); os.IsTimeout(err) {
			t.Errorf("%s: got an open connection, want it closed", name)
		}
	}
	h.verify(t, "a", check{"echo on", "on"})
}

// TestWideGuestsLeaveRoom: visitors of a public port cannot block access to the hub for its owner or other clients.
func TestWideGuestsLeaveRoom(t *testing.T) {
	t.Parallel()
	const calls = 40
	h := tenants(t, nil, "--public-ports", "--tenant-calls", fmt.Sprint(calls))
	ann, bob := h.tenant(t, "ann", "user"), h.tenant(t, "bob", "user")
	var sb struct{ ID string }
	if err := json.Unmarshal([]byte(ann.must(t, "create", "a", "-o", "json")), &sb); err != nil || sb.ID == "" {
		t.Fatalf("got %+v and error %v, want an ID", sb, err)
	}
	ann.must(t, "exec", "a", "--", endlessServer)
	// An unauthenticated client.
	visit := "GET /hang HTTP/1.1\r\nHost: 9000-" + strings.ReplaceAll(sb.ID, "-", "") + ".localhost\r\n\r\n"
	refused := make(chan int, 2*calls)
	var wait sync.WaitGroup
	defer wait.Wait()
	for range 2 * calls {
		c, err := net.DialTimeout("tcp", h.addr(), patience)
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(c, visit)
		wait.Go(func() {
			if res, err := http.ReadResponse(bufio.NewReader(c), nil); err == nil {
				refused <- res.StatusCode
			}
		})
		defer c.Close()
	}
	testenv.Poll(t, "visitors are refused", func() bool { return len(refused) >= calls })
	if status := <-refused; status != http.StatusTooManyRequests {
		t.Errorf("got status %d for a visitor, want 429", status)
	}
	for name, user := range map[string]*hub{"the owner": ann, "another tenant": bob} {
		if out, errs, code := user.cove(t, "", "list", "-q"); code != 0 {
			t.Errorf("%s: got code %d, %s%s, want 0", name, code, out, errs)
		}
	}
	ann.verify(t, "a", check{"echo mine", "mine"})
}
