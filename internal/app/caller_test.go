package app

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/config"
)

// TestOnlyTheHubNamesCallers: the activity record contains the caller that a hub names. Programs in
// the sandbox, and clients of a server without a hub, cannot name one. Services behind the server do
// not receive it.
func TestOnlyTheHubNamesCallers(t *testing.T) {
	t.Parallel()
	hub := http.Header{}
	(&op.Call{Subject: "anna", KeyID: "k1"}).SendCaller(hub)
	key := func(listen string) string {
		if strings.HasPrefix(listen, "unix:") {
			return ""
		}
		return "key-of-the-server"
	}
	for _, c := range []struct {
		name, listen string
		outside      bool
		want         string
	}{
		{"the hub's socket", "unix:/nowhere", true, `"caller":"anna","key":"k1"`},
		{"a program inside", "unix:/nowhere", false, `"caller":"","key":""`},
		{"an open port", "127.0.0.1:0", true, `"caller":"","key":""`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			a, err := NewAio(config.Aio{Listen: c.listen, Home: dir, Workspace: dir, State: dir + "/.state",
				Activity: true, APIKey: key(c.listen)}, nil, "0.0.0", slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { a.Close() })
			h, inside := a.Handlers()
			if !c.outside {
				h = inside
			}
			ask := func(method, path, body string) string {
				r := httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(body))
				r.Header, r.Host, r.RemoteAddr = hub.Clone(), "localhost", "127.0.0.1:1"
				r.Header.Set("Content-Type", "application/json")
				r.Header.Set("X-API-Key", key(c.listen))
				r.Header.Set("Sec-Fetch-Site", "same-origin")
				w := httptest.NewRecorder()
				h.ServeHTTP(w, r)
				if w.Code != http.StatusOK {
					t.Fatalf("%s: got %d %s, want 200", path, w.Code, w.Body)
				}
				return w.Body.String()
			}
			ask("POST", "/v1/file/write", `{"file":"x","content":"y"}`)
			if got := ask("GET", "/v1/sandbox/activity", ""); !strings.Contains(got, c.want) || !strings.Contains(got, `"via":"page"`) {
				t.Errorf("got %s, want %s and a page", got, c.want)
			}
		})
	}
	// The header does not reach services behind the server, such as those on ports.
	r := httptest.NewRequestWithContext(op.WithCall(t.Context(), &op.Call{}), "GET", "/proxy/3000/", nil)
	r.Header = hub.Clone()
	if _, err := admit(r, op.Op{}); r.Header.Get(op.CallerHeader) != "" {
		t.Errorf("got the caller %q behind the server (%v), want none", r.Header.Get(op.CallerHeader), err)
	}
}
