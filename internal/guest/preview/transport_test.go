package preview_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cove-sandbox/cove/internal/auth"
	"github.com/cove-sandbox/cove/internal/guest/preview"
)

// scripted starts a service that responds to the n-th request on a connection with the text that respond returns. It closes
// the connection if the text is empty or contains "Connection: close".
func scripted(t *testing.T, respond func(conn, request int32) string) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	var conns atomic.Int32
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { c.Close() })
			go func() {
				defer c.Close()
				conn := conns.Add(1)
				in := bufio.NewReader(c)
				for request := int32(1); ; request++ {
					r, err := http.ReadRequest(in)
					if err != nil {
						return
					}
					io.Copy(io.Discard, r.Body)
					text := respond(conn, request)
					io.WriteString(c, text)
					if text == "" || strings.Contains(text, "Connection: close") {
						return
					}
				}
			}()
		}
	}()
	return l.Addr().(*net.TCPAddr).Port
}

const small = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

// TestConnectionsAreReused: services may close connections early, or send unexpected bytes.
func TestConnectionsAreReused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		respond  func(conn, request int32) string
		status   int
		maxConns int32 // for 6 requests in sequence
	}{
		{"kept open", func(int32, int32) string { return small }, 200, 1},
		{"closed as announced", func(int32, int32) string { return "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nok" }, 200, 6},
		{"closed at the next request", func(_, request int32) string { return map[bool]string{true: small}[request < 3] }, 200, 6},
		{"an unexpected second response", func(int32, int32) string { return small + "HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n" }, 200, 6},
		{"early responses", func(int32, int32) string {
			return strings.Repeat("HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\n", 3) + small
		}, 200, 1},
		{"endless early responses", func(int32, int32) string { return strings.Repeat("HTTP/1.1 103 Early Hints\r\n\r\n", 20) }, 502, 6},
		{"an endless header", func(int32, int32) string { return "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 300<<10) }, 502, 6},
		{"unexpected switch of protocols", func(int32, int32) string {
			return "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n"
		}, 502, 6},
		{"no response", func(int32, int32) string { return "" }, 502, 6},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var conns atomic.Int32
			port := scripted(t, func(conn, request int32) string {
				conns.Store(max(conns.Load(), conn))
				return c.respond(conn, request)
			})
			r := newRig(t, preview.Config{}, auth.Config{})
			for range 6 {
				res, body := r.do("GET", fmt.Sprintf("/proxy/%d/", port), "")
				if res.StatusCode != c.status || c.status == 200 && body != "ok" {
					t.Errorf("got %d %q, want %d", res.StatusCode, body, c.status)
				}
			}
			if conns.Load() > c.maxConns {
				t.Errorf("got %d connections, want at most %d", conns.Load(), c.maxConns)
			}
		})
	}
}

// TestHeadHasNoBody: a response to HEAD has the length of a body but no body.
func TestHeadHasNoBody(t *testing.T) {
	t.Parallel()
	port := service(t, "127.0.0.1:0", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "1000")
		w.Header().Set("X-Method", r.Method)
	})
	r := newRig(t, preview.Config{}, auth.Config{})
	for range 2 {
		res, body := r.do("HEAD", fmt.Sprintf("/proxy/%d/", port), "")
		if res.StatusCode != 200 || body != "" || res.ContentLength != 1000 || res.Header.Get("X-Method") != "HEAD" {
			t.Errorf("got %d, %q, length %d and header %v, want 200 and the length", res.StatusCode, body, res.ContentLength, res.Header)
		}
	}
}
