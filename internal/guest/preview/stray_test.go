package preview_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"github.com/cove-sandbox/cove/internal/auth"
	"github.com/cove-sandbox/cove/internal/guest/preview"
)

// TestAbsolutePathsOfAPageFindItsPort: development servers refer to their files by absolute
// paths and open WebSockets at the root.
func TestAbsolutePathsOfAPageFindItsPort(t *testing.T) {
	t.Parallel()
	port := service(t, "127.0.0.1:0", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") != "" {
			c, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{"vite-hmr"}})
			if err == nil {
				_ = c.Write(r.Context(), websocket.MessageText, []byte(r.URL.Path))
				c.Close(websocket.StatusNormalClosure, "")
			}
			return
		}
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprint(w, r.RequestURI)
	})
	r := newRig(t, preview.Config{Own: func(s string) bool { return s == "v1" || s == "proxy" || s == "absproxy" }}, auth.Config{})
	page := fmt.Sprintf("%s/proxy/%d/deep/", r.server.URL, port)
	res, _ := r.do("GET", fmt.Sprintf("/proxy/%d/", port), "")
	cookie := res.Header.Get("Set-Cookie")
	if want := fmt.Sprintf("aio-preview=%d; Path=/; HttpOnly; SameSite=Lax", port); cookie != want {
		t.Errorf("got cookie %q, want %q", cookie, want)
	}
	for _, row := range []struct{ method, path, referer, want string }{
		{"GET", "/@vite/client?a=1", page, fmt.Sprintf("/proxy/%d/@vite/client?a=1", port)},
		{"POST", "/api/x", page, fmt.Sprintf("/proxy/%d/api/x", port)},
		{"GET", "/v1/own", page, ""},                                  // the sandbox's
		{"GET", "/", page, ""},                                        // a person goes home
		{"GET", "/@vite/client", "http://other.example/proxy/1/", ""}, // another host's page
		{"GET", "/@vite/client", r.server.URL + "/absproxy/1/", ""},   // which knows its prefix
		{"GET", "/@vite/client", r.server.URL + "/proxy/01/", ""},     // no port
		{"GET", "/@vite/client", r.server.URL + "/elsewhere", ""},     // no preview
		{"GET", "/@vite/client", "", ""},                              // no page
	} {
		res, _ := r.do(row.method, row.path, "", "Referer", row.referer)
		if got := res.Header.Get("Location"); got != row.want || (row.want != "") != (res.StatusCode == http.StatusTemporaryRedirect) {
			t.Errorf("%s %s from %s: got %d to %q, want a redirect to %q", row.method, row.path, row.referer, res.StatusCode, got, row.want)
		}
	}
	name, _, _ := strings.Cut(cookie, ";")
	for path, ok := range map[string]bool{"/?token=1": true, "/_next/webpack-hmr": true, "/v1/own": false} {
		conn, _, err := websocket.Dial(t.Context(), r.server.URL+path, &websocket.DialOptions{HTTPHeader: http.Header{"Cookie": {name}}, Subprotocols: []string{"vite-hmr"}})
		if (err == nil) != ok {
			t.Errorf("WebSocket %s: got %v, want a connection: %v", path, err, ok)
		}
		if err == nil {
			_, b, err := conn.Read(t.Context())
			if want, _, _ := strings.Cut(path, "?"); string(b) != want {
				t.Errorf("WebSocket %s: got %q and %v, want the path %q", path, b, err, want)
			}
			conn.CloseNow()
		}
	}
	reserved := newRig(t, preview.Config{Own: func(string) bool { return false }, Deny: func(int) bool { return true }}, auth.Config{})
	if _, res, err := websocket.Dial(t.Context(), reserved.server.URL+"/", &websocket.DialOptions{HTTPHeader: http.Header{"Cookie": {name}}}); err == nil || res == nil || res.StatusCode != http.StatusForbidden {
		t.Errorf("a reserved port by cookie: got %v %v, want 403", res, err)
	}
}
