package browser_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/auth"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/guest/browser"
	"github.com/cove-sandbox/cove/internal/guest/display"
	"github.com/cove-sandbox/cove/internal/guest/internal/cdp"
	"github.com/cove-sandbox/cove/internal/surface/rest"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "guard" {
		os.Exit(proc.GuardMain(os.Stdin))
	}
	testenv.Main(m)
}

// fixture is a browser on a separate display, served over HTTP.
type fixture struct {
	*browser.Service
	display *display.Service
	runner  *proc.Runner
	dir     string
	url     string // of the server
}

func newFixture(t testing.TB, change ...func(*browser.Config)) *fixture {
	t.Helper()
	testenv.Need(t, "chromium", "Xtigervnc", "openbox")
	r := &fixture{dir: t.TempDir()}
	r.runner = proc.New(proc.Config{
		Env:   []string{"PATH=" + os.Getenv("PATH"), "HOME=" + r.dir, "LANG=C.UTF-8"},
		Guard: []string{"/proc/self/exe", "guard"},
	})
	r.display = display.New(display.Config{
		Runner: r.runner, State: r.dir, Home: r.dir, Workspace: r.dir, Width: 1024, Height: 768,
		Browser: func(ctx context.Context) (<-chan struct{}, func(), error) { return r.Hold(ctx) },
	})
	c := browser.Config{Runner: r.runner, Display: r.display, Home: r.dir, State: r.dir, FileDialogs: true}
	for _, f := range change {
		f(&c)
	}
	r.Service = browser.New(c)
	server := httptest.NewServer(rest.New(rest.Config{
		Table: op.NewTable(r.display.Ops(), r.Ops()),
		Base:  func(req *http.Request) *url.URL { return auth.Base(req, nil) },
	}))
	r.url = server.URL
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		server.CloseClientConnections()
		server.Close()
		r.Close()
		r.Close()
		r.display.Close()
		if left := r.runner.Living(); len(left) > 0 {
			t.Errorf("processes still run: %+v", left)
		}
		r.runner.Close()
		for _, left := range testenv.ProcessesOf(r.dir) {
			t.Errorf("process still runs: %s", left)
		}
	})
	return r
}

// pidOf finds a process by the name of its program.
func (r *fixture) pidOf(t testing.TB, program string) int {
	t.Helper()
	pid := 0
	testenv.Poll(t, program+" runs", func() bool {
		for _, p := range r.runner.Living() {
			if filepath.Base(p.Path) == program && !p.Background {
				pid = p.PID
			}
		}
		return pid != 0
	})
	return pid
}

// info calls Info and returns the hint of the reply.
func (r *fixture) info(t testing.TB) (browser.Info, string) {
	t.Helper()
	call := &op.Call{Base: &url.URL{Scheme: "http", Host: "sandbox"}}
	info, err := r.Info(op.WithCall(testContext(t), call), op.None{})
	must(t, err)
	return info, call.Hint
}

// connect returns the connection of the service.
func (r *fixture) connect(t testing.TB) *cdp.Client {
	t.Helper()
	c, release, err := r.Connect(testContext(t))
	must(t, err)
	t.Cleanup(release)
	return c
}

// tab is a page with a session.
type tab struct {
	client  *cdp.Client
	id      string
	session cdp.SessionID
}

// open opens a tab and waits until it has loaded.
func (r *fixture) open(t testing.TB, c *cdp.Client, address string) tab {
	t.Helper()
	id, err := c.CreateTarget(testContext(t), cdp.NewTarget{URL: address})
	must(t, err)
	s, err := c.Attach(testContext(t), id)
	must(t, err)
	testenv.Poll(t, address+" has loaded", func() bool {
		var loaded bool
		return c.Evaluate(testContext(t), s, fmt.Sprintf(`location.href === %q && document.readyState === "complete"`,
			address), &loaded) == nil && loaded
	})
	return tab{c, id, s}
}

func eval[T any](t testing.TB, p tab, script string) T {
	t.Helper()
	var v T
	testenv.Poll(t, "an answer of the page", func() bool {
		err := p.client.Evaluate(testContext(t), p.session, script, &v)
		if err != nil && strings.Contains(err.Error(), "navigated") {
			return false // the page is reloading
		}
		must(t, err)
		return true
	})
	return v
}

// pages lists the URLs of the open tabs.
func pages(t testing.TB, c *cdp.Client) []string {
	t.Helper()
	targets, err := c.Targets(testContext(t))
	must(t, err)
	var out []string
	for _, p := range targets {
		if p.Type == "page" {
			out = append(out, p.URL)
		}
	}
	return out
}

// site serves small pages whose title is their path.
func site(t testing.TB, routes map[string]http.HandlerFunc) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if h := routes[r.URL.Path]; h != nil {
			h(w, r)
			return
		}
		fmt.Fprintf(w, "<!doctype html><title>%s</title><body>%s", r.URL.Path, r.Host)
	}))
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	return s
}

// behind serves the server below a path prefix, as a hub does.
func behind(t testing.TB, target, prefix string, tls bool) string {
	t.Helper()
	u, err := url.Parse(target)
	must(t, err)
	proxy := &httputil.ReverseProxy{Rewrite: func(p *httputil.ProxyRequest) {
		p.SetURL(u)
		p.Out.URL.Path = strings.TrimPrefix(p.In.URL.Path, prefix)
		p.SetXForwarded()
		p.Out.Header.Set("X-Forwarded-Prefix", prefix)
		if tls {
			p.Out.Header.Set("X-Forwarded-Proto", "https")
		}
	}}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasPrefix(r.URL.Path, prefix+"/") {
			http.NotFound(w, r)
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	return s.URL + prefix
}

// get sends a GET request.
func get(t testing.TB, method, address string) (int, http.Header, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(testContext(t), method, address, nil)
	must(t, err)
	resp, err := http.DefaultClient.Do(req)
	must(t, err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	must(t, err)
	return resp.StatusCode, resp.Header, string(b)
}

func getJSON[T any](t testing.TB, address string) T {
	t.Helper()
	status, _, body := get(t, "GET", address)
	var v T
	if err := json.Unmarshal([]byte(body), &v); err != nil || status != 200 {
		t.Fatalf("%s: status %d, %v: %s, want status 200", address, status, err, body)
	}
	return v
}

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
