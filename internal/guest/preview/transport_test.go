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

// scripted is a service that answers the n-th request on a connection with what answer
// returns. It closes the connection if that is empty, or says so.
func scripted(t *testing.T, answer func(conn, request int32) string) int {
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
					text := answer(conn, request)
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

// TestConnectionsAreUsedAgain also with services that close them early, or say more than they
// were asked.
func TestConnectionsAreUsedAgain(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		answer func(conn, request int32) string
		status int
		conns  int32 // at the most, for 6 requests one after the other
	}{
		{"kept open", func(int32, int32) string { return small }, 200, 1},
		{"closed as announced", func(int32, int32) string { return "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nok" }, 200, 6},
		{"closed at the next request", func(_, request int32) string { return map[bool]string{true: small}[request < 3] }, 200, 6},
		{"an answer that nobody asked for", func(int32, int32) string { return small + "HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n" }, 200, 6},
		{"early answers", func(int32, int32) string {
			return strings.Repeat("HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\n", 3) + small
		}, 200, 1},
		{"early answers without end", func(int32, int32) string { return strings.Repeat("HTTP/1.1 103 Early Hints\r\n\r\n", 20) }, 502, 6},
		{"a header without end", func(int32, int32) string { return "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 300<<10) }, 502, 6},
		{"another protocol unasked", func(int32, int32) string {
			return "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n"
		}, 502, 6},
		{"never an answer", func(int32, int32) string { return "" }, 502, 6},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var most atomic.Int32
			port := scripted(t, func(conn, request int32) string {
				most.Store(max(most.Load(), conn))
				return c.answer(conn, request)
			})
			r := newRig(t, preview.Config{}, auth.Config{})
			for range 6 {
				res, body := r.do("GET", fmt.Sprintf("/proxy/%d/", port), "")
				if res.StatusCode != c.status || c.status == 200 && body != "ok" {
					t.Errorf("got %d %q, want %d", res.StatusCode, body, c.status)
				}
			}
			if most.Load() > c.conns {
				t.Errorf("got %d connections, want at most %d", most.Load(), c.conns)
			}
		})
	}
}

// TestHeadHasNoBody: the length of what GET would return is no reason to wait for it.
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
