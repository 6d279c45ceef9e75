package e2e

import (
	"bufio"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// eavesdropper is a server in a sandbox that records every request it can parse.
const eavesdropper = `cat > /tmp/l.py <<'P'
from http.server import *
class H(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        with open("/tmp/raw", "a") as f: f.write("REQUEST " + self.requestline + "\n" + str(self.headers))
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            while n := int(self.rfile.readline().split(b";")[0], 16): self.rfile.read(n + 2)
            while self.rfile.readline().strip(): pass
        else:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(200)
        self.send_header("Content-Length", "6")
        self.end_headers()
        self.wfile.write(b"inside")
    do_POST = do_GET
    def log_message(self, *a): pass
ThreadingHTTPServer(("127.0.0.1", 9000), H).serve_forever()
P
setsid python3 /tmp/l.py > /dev/null 2>&1 &`

// smuggleSite is the domain of the port on which the server in the sandbox listens.
const smuggleSite = "9000-a." + wideDomain

// TestWideSmuggling: data in HTTP/2 fields or next to a request never becomes a separate request to a sandbox, and
// authentication on a connection for one name is not valid for another.
func TestWideSmuggling(t *testing.T) {
	t.Parallel()
	h := serveSecure(t)
	h.must(t, "create", "a")
	defer func() { h.must(t, "rm", "a", "--yes") }()
	h.must(t, "exec", "a", "--", eavesdropper)
	bearer := []string{"authorization", "Bearer " + h.key}
	to := func(more ...string) []string {
		return append([]string{":method", "GET", ":scheme", "https", ":authority", smuggleSite, ":path", "/first"}, more...)
	}
	testenv.Poll(t, "the server inside answers", func() bool {
		_, text := h.frames(t, wideDomain).ask(1, "", to(bearer...)...)
		return text == "inside"
	})

	t.Run("fields", func(t *testing.T) { h.smuggleFields(t, to, bearer) })
	t.Run("connections", func(t *testing.T) { h.smuggleOnConnections(t, to, bearer) })
	t.Run("plain", func(t *testing.T) { h.smugglePlain(t) })

	seen := h.must(t, "exec", "a", "--", "cat /tmp/raw")
	if !strings.Contains(seen, "REQUEST GET /first HTTP/1.1\n") {
		t.Fatalf("got %.300q inside, want the first request", seen)
	}
	for line := range strings.Lines(seen) {
		lower := strings.ToLower(line)
		if strings.HasPrefix(line, "REQUEST ") && strings.Contains(lower, "smuggled") ||
			strings.Contains(line, h.key) || strings.HasPrefix(lower, "upgrade:") ||
			strings.HasPrefix(lower, "http2-settings:") || strings.HasPrefix(lower, "cookie:") {
			t.Errorf("got %q inside, want no such line", line)
		}
	}
}

// smuggleFields sends fields that contain requests or contradict each other.
func (h *secureHub) smuggleFields(t *testing.T, to func(more ...string) []string, bearer []string) {
	const evil = " HTTP/1.1\r\nHost: x\r\n\r\nGET /smuggled"
	for name, fields := range map[string][]string{
		"value":          to("x-a", "b\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"),
		"line feed":      to("x-a", "b\n\nGET /smuggled HTTP/1.1\n\n"),
		"name":           to("x-a: b\r\nx", "b"),
		"upper case":     to("Transfer-Encoding", "chunked"),
		"encoding":       to("transfer-encoding", "chunked"),
		"two encodings":  to("transfer-encoding", "chunked", "content-length", "4"),
		"tabbed":         to("transfer-encoding", "\tchunked"),
		"te":             to("te", "chunked"),
		"connection":     to("connection", "x-forwarded-for"),
		"upgrade":        to("connection", "upgrade, http2-settings", "upgrade", "h2c", "http2-settings", "AAMAAABkAARAAAAA"),
		"path":           {":method", "GET", ":scheme", "https", ":authority", smuggleSite, ":path", "/" + evil},
		"method":         {":method", "GET /smuggled HTTP/1.1\r\n", ":scheme", "https", ":authority", smuggleSite, ":path", "/"},
		"scheme":         {":method", "GET", ":scheme", "https://x/smuggled?", ":authority", smuggleSite, ":path", "/first"},
		"authority":      {":method", "GET", ":scheme", "https", ":authority", smuggleSite + evil, ":path", "/"},
		"user":           {":method", "GET", ":scheme", "https", ":authority", "x@" + smuggleSite, ":path", "/smuggled"},
		"two authority":  {":method", "GET", ":scheme", "https", ":authority", wideDomain, ":authority", smuggleSite, ":path", "/smuggled"},
		"late pseudo":    to("x-a", "b", ":path", "/smuggled"),
		"length too low": to("content-length", "1"),
		"long length":    to("content-length", "100"),
		"two lengths":    to("content-length", "1", "content-length", "40"),
	} {
		body := "GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
		status, _ := h.frames(t, wideDomain).ask(1, body, append(fields, bearer...)...)
		if status == "200" {
			t.Errorf("%s: got status %q, want an error", name, status)
		}
	}
}

// smuggleOnConnections uses one connection for several names.
func (h *secureHub) smuggleOnConnections(t *testing.T, to func(more ...string) []string, bearer []string) {
	const cookie = "cove_session=forged"
	// Browsers use one HTTP/2 connection for several names: the hub authorizes each request by its own name.
	f := h.frames(t, wideDomain)
	if status, text := f.ask(1, "", to(bearer...)...); text != "inside" {
		t.Errorf("with the key: got %s %q, want the page", status, text)
	}
	for i, fields := range [][]string{to(), to("cookie", cookie),
		to("x-forwarded-for", "127.0.0.1", "x-forwarded-proto", "https"), to("host", wideDomain),
		{":method", "GET", ":scheme", "https", ":authority", "a." + wideDomain, ":path", "/v1/shell/list"}} {
		if status, text := f.ask(uint32(3+2*i), "", fields...); status == "200" || strings.Contains(text, "inside") {
			t.Errorf("%q on the same connection without a key: got %s %q, want it refused", fields, status, text)
		}
	}
	// The server name of the TLS handshake grants no access either.
	if status, text := h.frames(t, "a."+wideDomain).ask(1, "", ":method", "GET", ":scheme", "https", ":authority",
		wideDomain, ":path", "/api/v1/sandbox"); status == "200" {
		t.Errorf("the hub behind the name of a sandbox: got %s %q, want it refused", status, text)
	}
}

// smugglePlain sends HTTP/1.1 requests with unusual upgrades, framing and targets.
func (h *secureHub) smugglePlain(t *testing.T) {
	// A read-only client must not get a connection on which the hub cannot see requests.
	viewer := h.tenant(t, "eve", "viewer")
	for name, request := range map[string]string{
		"h2c": "GET /first HTTP/1.1\r\nHost: " + smuggleSite +
			"\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAA\r\n",
		"absolute": "GET https://" + smuggleSite + "/first HTTP/1.1\r\nHost: " + wideDomain + "\r\n",
		"chunks": "POST /first HTTP/1.1\r\nHost: " + smuggleSite +
			"\r\nTransfer-Encoding: chunked\r\nTrailer: Transfer-Encoding, Content-Length\r\n",
	} {
		c, key := h.dial(t, wideDomain, "http/1.1"), h.key
		if name == "h2c" {
			key = viewer.key
		}
		io.WriteString(c, request+"Authorization: Bearer "+key+"\r\n\r\n")
		if name == "chunks" {
			io.WriteString(c, "1;x=\"\r\n\r\nGET /smuggled\"\r\na\r\n0\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n")
		}
		res, err := http.ReadResponse(bufio.NewReader(c), nil)
		if name == "h2c" && (err != nil || res.StatusCode != http.StatusForbidden) {
			t.Errorf("%s: got %v and error %v, want 403", name, res, err)
		}
		c.Close()
	}
}
