package app

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/internal/config"
)

// standalone is a sandbox without a hub.
type standalone struct {
	t *testing.T
	h http.Handler
}

func newStandalone(t *testing.T, key string, hosts ...string) standalone {
	t.Helper()
	dir := t.TempDir()
	cfg := config.Aio{Listen: "127.0.0.1:8080", Home: dir, Workspace: dir, State: dir + "/.state", APIKey: key,
		LocalUsers: []string{"*"}, PublicHosts: hosts}
	a, err := NewAio(cfg, nil, "0.0.0", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close() })
	h, _ := a.Handlers()
	return standalone{t, h}
}

// get sends a request to a URL, with pairs of headers.
func (s standalone) get(target string, headers ...string) *http.Response {
	s.t.Helper()
	u, err := url.Parse(target)
	if err != nil {
		s.t.Fatal(err)
	}
	r := httptest.NewRequestWithContext(s.t.Context(), "GET", u.RequestURI(), nil)
	r.Host, r.RemoteAddr = u.Host, "127.0.0.1:1"
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	s.h.ServeHTTP(w, r)
	return w.Result()
}

var (
	typed  = []string{"Sec-Fetch-Site", "none", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document", "Accept", "text/html"}
	linked = []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document", "Accept", "text/html"}
	framed = []string{"Sec-Fetch-Site", "same-origin", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "iframe", "Accept", "text/html"}
	called = []string{"Sec-Fetch-Site", "same-origin", "Sec-Fetch-Mode", "cors", "Sec-Fetch-Dest", "empty"}
)

func with(headers []string, more ...string) []string {
	return append(headers[:len(headers):len(headers)], more...)
}

// Foreign pages are never shown on the origin of the API.
func TestForeignPagesHaveAnotherOrigin(t *testing.T) {
	t.Parallel()
	open := newStandalone(t, "", "*.box.example.com", "plain.example.com")
	for _, c := range []struct{ at, want string }{
		{"http://localhost:8080/proxy/3000/a?b=c", "http://3000-sandbox.localhost:8080/a?b=c"},
		{"http://localhost:8080/proxy/3000", "http://3000-sandbox.localhost:8080/"},
		{"http://127.0.0.1:8080/proxy/3000/a%2Fb", "http://3000-sandbox.localhost:8080/a%2Fb"},
		{"http://[::1]:8080/proxy/3000/", "http://3000-sandbox.localhost:8080/"},
		{"http://localhost:8080/absproxy/3000/a", "http://3000-sandbox.localhost:8080/absproxy/3000/a"},
		{"http://x.box.example.com/proxy/3000/", "http://3000-sandbox.box.example.com/"},
		{"http://localhost:8080/code-server/?folder=/x", "http://code-server.localhost:8080/code-server/?folder=/x"},
		{"http://localhost:8080/jupyter/lab", "http://jupyter.localhost:8080/jupyter/lab"},
		{"http://localhost:8080/devtools/inspector.html?ws=localhost:8080/devtools/page/1",
			"http://devtools.localhost:8080/devtools/inspector.html?ws=devtools.localhost:8080/devtools/page/1"},
	} {
		for name, headers := range map[string][]string{"typed": typed, "linked": linked} {
			if res := open.get(c.at, headers...); res.StatusCode != 303 || res.Header.Get("Location") != c.want {
				t.Errorf("%s, %s: got %d to %q, want %s", c.at, name, res.StatusCode, res.Header.Get("Location"), c.want)
			}
		}
	}
	// Below a name without wildcard, pages have no origin.
	res := open.get("http://plain.example.com/proxy/3000/a", typed...)
	to := res.Header.Get("Location")
	if res.StatusCode != 303 || !strings.HasPrefix(to, "/~") || !strings.HasSuffix(to, "/proxy/3000/a") {
		t.Fatalf("got %d to %q, want a pass", res.StatusCode, to)
	}
	opaque := []string{"Sec-Fetch-Site", "cross-site", "Origin", "null", "Sec-Fetch-Mode", "cors"}
	if res := open.get("http://plain.example.com"+to, opaque...); res.StatusCode != 502 ||
		!strings.Contains(strings.Join(res.Header["Content-Security-Policy"], ";"), "sandbox allow-scripts") {
		t.Errorf("behind the pass: got %d %v, want a page without an origin from a port that is not open", res.StatusCode, res.Header)
	}
	pass := strings.Split(to, "/")[1]
	for _, path := range []string{"/v1/sandbox", "/proxy/3001/", "/terminal", "/e2b/envd/files?path=x", "/code-server/", "/"} {
		if res := open.get("http://plain.example.com/"+pass+path, opaque...); res.StatusCode != 403 {
			t.Errorf("pass of port 3000 at %s: got %d, want 403", path, res.StatusCode)
		}
	}
	// Programs use the path, and get responses that are harmless in a browser.
	if res := open.get("http://localhost:8080/proxy/3000/"); res.StatusCode != 502 ||
		!strings.Contains(strings.Join(res.Header["Content-Security-Policy"], ";"), "sandbox") {
		t.Errorf("program: got %d %v, want the port's reply with a policy", res.StatusCode, res.Header)
	}
	if res := open.get("http://localhost:8080/proxy/3000/x.js", "Sec-Fetch-Site", "same-origin", "Sec-Fetch-Mode",
		"no-cors", "Sec-Fetch-Dest", "script"); res.StatusCode != 403 {
		t.Errorf("script of a port in a built-in page: got %d, want 403", res.StatusCode)
	}
}

// A redirect leads only to sites: an invalid port is never part of a host name.
func TestOnlyPortsHaveSites(t *testing.T) {
	t.Parallel()
	for _, host := range []string{"localhost:8080", "10.0.0.1:8080"} {
		s := newStandalone(t, "", "10.0.0.1")
		for _, port := range []string{"@evil.example", ".evil.example", "%40evil.example", "%22%3E", "0", "99999",
			"-1", "3000@evil.example", "3000%2F@evil.example", "x"} {
			for name, headers := range map[string][]string{"typed": typed, "linked": linked, "framed": framed} {
				for _, path := range []string{"/proxy/", "/absproxy/"} {
					if res := s.get("http://"+host+path+port+"/", headers...); res.Header.Get("Location") != "" {
						t.Errorf("%s%s%s, %s: got %d to %q, want no redirect", host, path, port, name, res.StatusCode, res.Header.Get("Location"))
					}
				}
			}
		}
	}
}

// A page with a separate host reaches only its site.
func TestASiteReachesOnlyItself(t *testing.T) {
	t.Parallel()
	open := newStandalone(t, "")
	for _, c := range []struct {
		at      string
		headers []string
		want    int
	}{
		{"http://3000-sandbox.localhost:8080/v1/sandbox", called, 502}, // a path of the service
		{"http://3000-sandbox.localhost:8080/", with(called, "X-Aio-Proxy-Port", "49983"), 403},
		{"http://3000-sandbox.localhost:8080/", with(called, "X-Aio-Proxy-Port", "3000"), 502},
		{"http://3000-sandbox.localhost:8080/proxy/3001/", called, 502},
		{"http://code-server.localhost:8080/v1/sandbox", called, 403},
		{"http://code-server.localhost:8080/v1/bash/sessions", called, 403},
		{"http://code-server.localhost:8080/jupyter/", called, 403},
		{"http://code-server.localhost:8080/terminal", typed, 403},
		{"http://code-server.localhost:8080/", typed, 403},
		{"http://code-server.localhost:8080/proxy/3000/", typed, 403},
		{"http://code-server.localhost:8080/v1/sandbox/components", called, 200},
		{"http://code-server.localhost:8080/ui/ui.css", called, 200},
		{"http://localhost:8080/v1/sandbox", called, 200},
		{"http://devtools.localhost:8080/ui/ui.css", called, 403},
		{"http://devtools.localhost:8080/json/version", called, 403},
	} {
		if res := open.get(c.at, c.headers...); res.StatusCode != c.want {
			t.Errorf("%s %v: got %d, want %d", c.at, c.headers, res.StatusCode, c.want)
		}
	}
}

// With credentials, a site gets a separate session, and a frame gets a pass.
func TestSitesHaveSessions(t *testing.T) {
	t.Parallel()
	s := newStandalone(t, "secret")
	res := s.get("http://localhost:8080/terminal?api_key=secret", typed...)
	session, _, _ := strings.Cut(res.Header.Get("Set-Cookie"), ";")
	if session == "" {
		t.Fatalf("got %d %v, want a session", res.StatusCode, res.Header)
	}
	res = s.get("http://localhost:8080/proxy/3000/", with(typed, "Cookie", session)...)
	to := res.Header.Get("Location")
	if !strings.HasPrefix(to, "http://3000-sandbox.localhost:8080/?ticket=tkt_") {
		t.Fatalf("got %d to %q, want the site with a ticket", res.StatusCode, to)
	}
	res = s.get(to, typed...)
	own, _, _ := strings.Cut(res.Header.Get("Set-Cookie"), ";")
	if own == "" {
		t.Fatalf("got %d %v, want a session on the site", res.StatusCode, res.Header)
	}
	if res := s.get("http://3000-sandbox.localhost:8080/x", with(called, "Cookie", own)...); res.StatusCode != 502 {
		t.Errorf("session of the site: got %d, want the port's reply", res.StatusCode)
	}
	if res := s.get("http://3000-sandbox.localhost:8080/x", typed...); res.Header.Get("Location") != "http://localhost:8080/proxy/3000/x" {
		t.Errorf("without a session: got %d to %q, want the sign-in at the server's own name", res.StatusCode, res.Header.Get("Location"))
	}
	value := own[strings.Index(own, "=")+1:]
	name := session[:strings.Index(session, "=")]
	if res := s.get("http://localhost:8080/v1/sandbox", with(called, "Cookie", name+"="+value)...); res.StatusCode != 401 {
		t.Errorf("session of a site at the API: got %d, want 401", res.StatusCode)
	}
	res = s.get("http://localhost:8080/proxy/3000/y", with(framed, "Cookie", session)...)
	if to = res.Header.Get("Location"); !strings.HasPrefix(to, "http://3000-sandbox.localhost:8080/~") || !strings.HasSuffix(to, "/y") {
		t.Errorf("in a frame: got %d to %q, want the site with a pass", res.StatusCode, to)
	}
	if res := s.get(to, "Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "iframe"); res.StatusCode != 502 {
		t.Errorf("frame with a pass: got %d, want the port's reply", res.StatusCode)
	}
}

// A page of another site can only open built-in pages.
func TestLinksFromOtherSites(t *testing.T) {
	t.Parallel()
	open := newStandalone(t, "")
	for path, want := range map[string]int{
		"/": 200, "/terminal": 200, "/files": 200, "/guide": 200, "/v1/docs": 200, "/vnc/index.html": 200, "/activity": 200,
		"/e2b/envd/files?path=x.html": 403, "/v1/file/download?path=x.html": 403, "/v1/file/preview?path=x.html": 403,
		"/v1/sandbox": 403, "/v1/sandbox/activity/export": 403, "/metrics": 403, "/mcp": 403, "/json/version": 403, "/v1/openapi.json": 403,
	} {
		if res := open.get("http://localhost:8080"+path, linked...); res.StatusCode != want {
			t.Errorf("%s from another site: got %d, want %d", path, res.StatusCode, want)
		}
	}
}
