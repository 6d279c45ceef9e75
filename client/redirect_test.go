package client_test

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cove-sandbox/cove/client"
)

// TestRedirectsAreNotFollowed: a server in a sandbox cannot redirect a request, which contains the key, to another server.
func TestRedirectsAreNotFollowed(t *testing.T) {
	t.Parallel()
	var elsewhere atomic.Int32
	thief := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { elsewhere.Add(1) }))
	defer thief.Close()
	hub := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case !strings.HasPrefix(r.URL.Path, "/sandbox/"):
			elsewhere.Add(1) // another route of the hub
		case strings.HasSuffix(r.URL.Path, "/healthz"):
		case strings.HasPrefix(r.URL.Path, "/sandbox/same/"):
			http.Redirect(w, r, "/api/v1/sandbox", http.StatusTemporaryRedirect)
		default:
			http.Redirect(w, r, thief.URL, http.StatusTemporaryRedirect)
		}
	}))
	defer hub.Close()
	c, err := client.New(client.Config{URL: hub.URL, Key: "key"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, name := range []string{"away", "same"} {
		g := c.Guest(name)
		for what, call := range map[string]func() error{
			"call":     func() error { return g.Call(t.Context(), "POST", "/v1/file/stat", nil, nil) },
			"download": func() error { _, err := g.Download(t.Context(), "x"); return err },
			"upload":   func() error { _, _, err := g.Upload(t.Context(), "x", "x", strings.NewReader("x")); return err },
			"exec":     func() error { _, err := g.Exec(t.Context(), "true", client.ExecOptions{}); return err },
			"shell":    func() error { _, err := g.Shell(t.Context(), client.ShellOptions{}); return err },
		} {
			if err := call(); err == nil || !strings.Contains(err.Error(), "not followed") {
				t.Errorf("%s, %s: got %v, want an error about a redirect", name, what, err)
			}
		}
	}
	if n := elsewhere.Load(); n > 0 {
		t.Errorf("got %d requests elsewhere, want none", n)
	}
}

// TestASandboxChoosesNoFileName: the name of a download comes from the request.
func TestASandboxChoosesNoFileName(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Disposition", `attachment; filename="../.bashrc"`)
		w.Write(bytes.Repeat([]byte("x"), 10))
	}))
	defer s.Close()
	g, err := client.NewGuest(client.Config{URL: s.URL})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	f, err := g.Download(t.Context(), "a/report.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if f.Name != "report.txt" {
		t.Errorf("got %q, want report.txt", f.Name)
	}
}
