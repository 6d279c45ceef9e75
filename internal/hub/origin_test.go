package hub

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/internal/auth"
)

// guarded is a hub with real authentication, with one credential or none.
func guarded(t *testing.T, key string) *rig {
	t.Helper()
	var r *rig
	c := auth.Config{APIKey: key, Open: key == ""}
	c.PublicHosts = []string{"hub.example.com", "*.box.example.com", "box.example.com"}
	r = newRig(t, setup{auth: &c, hub: Config{Domains: []string{"localhost", "box.example.com"},
		PublicHosts: []string{"hub.example.com"}, Sessions: lateSessions{&r}}})
	return r
}

// lateSessions are the sessions of a guard that is created later.
type lateSessions struct{ of **rig }

func (s lateSessions) IssueFor(ctx context.Context, site string) (string, error) {
	return (*s.of).guard.IssueFor(ctx, site)
}
func (s lateSessions) Pass(ctx context.Context, site string) string {
	return (*s.of).guard.Pass(ctx, site)
}

var visit = []string{"Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document", "Sec-Fetch-Site", "none", "Accept",
	"text/html", "User-Agent", "Mozilla/5.0"}

func with(headers []string, more ...string) []string {
	return append(headers[:len(headers):len(headers)], more...)
}

// cookie signs in at a host and returns the session.
func (r *rig) cookie(host string, id auth.Identity) string {
	r.t.Helper()
	ticket, _, err := r.guard.Issue(auth.NewContext(context.Background(), id))
	if err != nil {
		r.t.Fatal(err)
	}
	a := r.do("GET", "/?ticket="+ticket, "", with(visit, "Host", host)...)
	cookie, _, _ := strings.Cut(a.Header.Get("Set-Cookie"), ";")
	if cookie == "" {
		r.t.Fatalf("got %d %s, want a session", a.Status, a.Body)
	}
	return cookie
}

var operator = auth.Identity{Operator: true}

// A browser that uses a path is redirected to the site's own origin, with a session that
// is valid there only.
func TestVisitsAreRedirectedToOrigin(t *testing.T) {
	t.Parallel()
	r := guarded(t, "secret")
	r.create(`{"name":"a"}`, "X-API-Key", "secret")
	for _, c := range []struct{ host, path, want string }{
		{"localhost:99", "/sandbox/a/terminal?x=1", "http://a.localhost:99/terminal?x=1&ticket="},
		{"localhost:99", "/sandbox/a", "http://a.localhost:99/?ticket="},
		{"localhost:99", "/sandbox/a/", "http://a.localhost:99/?ticket="},
		{"localhost:99", "/sandbox/a//x/%2e%2e/y", "http://a.localhost:99//x/%2e%2e/y?ticket="},
		{"localhost:99", "/sandbox/a/proxy/3000", "http://3000-a.localhost:99/?ticket="},
		{"localhost:99", "/sandbox/a/proxy/3000/x//y?q", "http://3000-a.localhost:99/x//y?q&ticket="},
		{"localhost:99", "/sandbox/a/absproxy/3000/x", "http://3000-a.localhost:99/absproxy/3000/x?ticket="},
		{"box.example.com", "/sandbox/a/proxy/3000/", "http://3000-a.box.example.com/?ticket="},
		{"hub.example.com", "/sandbox/a/x", "http://a.box.example.com/x?ticket="},
	} {
		session := r.cookie(c.host, operator)
		a := r.do("GET", c.path, "", with(visit, "Host", c.host, "Cookie", session)...)
		to, ok := strings.CutPrefix(a.Header.Get("Location"), c.want)
		if a.Status != 303 || !ok || !strings.HasPrefix(to, "tkt_") || a.Header.Get("Cache-Control") != "no-store" {
			t.Errorf("%s%s: got %d to %q, want %s…", c.host, c.path, a.Status, a.Header.Get("Location"), c.want)
			continue
		}
		// The ticket and the session that it starts are valid for that site only.
		site, _, _ := strings.Cut(strings.TrimPrefix(c.want, "http://"), "/")
		for _, other := range []string{c.host, "b." + site, strings.Replace(site, "a.", "b.", 1)} {
			ticket, err := r.guard.IssueFor(auth.NewContext(context.Background(), operator), siteKey(site))
			if err != nil {
				t.Fatal(err)
			}
			if a := r.do("GET", "/api/v1/sandbox?ticket="+ticket, "", "Host", other); a.Status == 200 {
				t.Errorf("ticket of %s at %s: got %d, want a rejection", site, other, a.Status)
			}
		}
		a = r.do("GET", "/x?ticket="+to, "", with(visit, "Host", site)...)
		own, _, _ := strings.Cut(a.Header.Get("Set-Cookie"), ";")
		if a.Status != 303 || own == "" || strings.Contains(a.Header.Get("Set-Cookie"), "Domain") {
			t.Fatalf("%s: got %d %v, want a session of this host only", site, a.Status, a.Header)
		}
		if s := r.seen("GET", "/y", "", "Host", site, "Cookie", own); s.URI != "/y" || s.Header.Get("Cookie") != "" {
			t.Errorf("%s: got %+v, want the request without the session", site, s)
		}
		name, _, _ := strings.Cut(session, "=")
		_, value, _ := strings.Cut(own, "=")
		if a := r.do("GET", "/api/v1/sandbox", "", "Host", c.host, "Cookie", name+"="+value); a.Status != 401 {
			t.Errorf("session of %s at the hub: got %d %s, want 401", site, a.Status, a.Body)
		}
	}
}

func siteKey(host string) string {
	label, _, _ := strings.Cut(host, ".")
	if name, ok := strings.CutPrefix(label, "3000-"); ok {
		return name + ":3000"
	}
	return label + ":0"
}

// Programs are served by path, with headers that protect browsers.
func TestProgramsAreServedByPath(t *testing.T) {
	t.Parallel()
	for _, key := range []string{"secret", ""} {
		r := guarded(t, key)
		r.create(`{"name":"a"}`, "X-API-Key", key)
		for _, headers := range [][]string{nil, {"Accept", "text/html"}, {"Accept", "*/*", "User-Agent", "Mozilla/5.0"}} {
			for _, method := range []string{"GET", "POST", "DELETE"} {
				a := r.do(method, "/sandbox/a/v1/x", "", with(headers, "X-API-Key", key)...)
				if a.Status != 200 || !strings.HasPrefix(a.Header.Get("Content-Security-Policy"), "sandbox ") ||
					strings.Contains(a.Header.Get("Content-Security-Policy"), "allow-same-origin") {
					t.Errorf("%s %v: got %d %v, want 200 without an origin", method, headers, a.Status, a.Header)
				}
			}
		}
		// This includes a program that sends a browser's headers, if it authenticates as a program.
		if a := r.do("GET", "/sandbox/a/v1/x", "", with(visit, "X-API-Key", key, "Host", "localhost")...); key != "" && a.Status != 200 {
			t.Errorf("got %d, want 200", a.Status)
		}
	}
}

// Without host names, pages have no origin, but a pass for their own site.
func TestPagesAtIPAddressHaveNoOrigin(t *testing.T) {
	t.Parallel()
	for _, key := range []string{"secret", ""} {
		r := guarded(t, key)
		host := strings.TrimPrefix(r.server.URL, "http://")
		r.create(`{"name":"a"}`, "X-API-Key", key)
		r.create(`{"name":"b"}`, "X-API-Key", key)
		session := []string{"X-None", "1"}
		if key != "" {
			session = []string{"Cookie", r.cookie(host, operator)}
		}
		open := func(path string) string {
			t.Helper()
			a := r.do("GET", path, "", with(visit, session...)...)
			to := a.Header.Get("Location")
			if a.Status != 303 || !strings.HasPrefix(to, "/sandbox/a/~") {
				t.Fatalf("%s: got %d to %q, want a pass", path, a.Status, to)
			}
			return to
		}
		server, port := open("/sandbox/a/terminal?x=1"), open("/sandbox/a/proxy/3000/x")
		if !strings.HasSuffix(server, "/terminal?x=1") || !strings.HasSuffix(port, "/proxy/3000/x") || open("/sandbox/a/proxy/3000/x") != port {
			t.Errorf("got %s and %s, want the same paths behind a pass, and the same one again", server, port)
		}
		passOf := func(path string) string { return strings.Split(path, "/")[3] }
		opaque := []string{"Origin", "null", "Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "cors"}
		s := r.seen("POST", server, "body", opaque...)
		if s.URI != "/terminal?x=1" || s.Header.Get("X-Forwarded-Prefix") != "/sandbox/a/"+passOf(server) || s.Header.Get("Origin") != "" {
			t.Errorf("got %+v, want the request without the pass", s)
		}
		a := r.do("GET", port, "", opaque...)
		if a.Status != 200 || a.Header.Get("Access-Control-Allow-Origin") != "null" ||
			a.Header.Get("Access-Control-Allow-Credentials") != "" || !strings.HasPrefix(a.Header.Get("Content-Security-Policy"), "sandbox ") {
			t.Errorf("got %d %v, want a page without an origin", a.Status, a.Header)
		}
		for _, path := range []string{
			"/sandbox/a/" + passOf(port) + "/terminal", "/sandbox/a/" + passOf(port) + "/proxy/4000/",
			"/sandbox/a/" + passOf(port) + "/proxy/3000x/", "/sandbox/a/" + passOf(port) + "/proxy/03000/", "/sandbox/a/" + passOf(port) + "/",
			"/sandbox/a/" + passOf(server) + "/proxy/3000/", "/sandbox/b/" + passOf(server) + "/terminal",
			"/sandbox/b/" + passOf(port) + "/proxy/3000/", "/sandbox/3000-a/" + passOf(port) + "/",
			"/sandbox/a/~" + strings.Repeat("A", 32) + "/terminal",
		} {
			if a := r.do("GET", path, "", opaque...); a.Status == 200 {
				t.Errorf("%s: got %d %s, want a rejection", path, a.Status, a.Body)
			}
			// A navigation is redirected to the hub, which has the browser's session. A pass never creates another pass.
			if a := r.do("GET", path, "", visit...); a.Status == 200 || strings.Contains(a.Header.Get("Location"), "~") {
				t.Errorf("%s, visited: got %d %v, want no other pass", path, a.Status, a.Header)
			}
		}
		for _, path := range []string{"/api/v1/sandbox", "/" + passOf(server) + "/api/v1/sandbox",
			"/api/v1/sandbox/" + passOf(server), "/sandbox/" + passOf(server) + "/a/terminal"} {
			if a := r.do("GET", path, "", opaque...); a.Status == 200 {
				t.Errorf("%s: got %d %s, want a rejection", path, a.Status, a.Body)
			}
		}
		if a := r.do("GET", server, "", with(opaque, "Host", "b.localhost")...); a.Status == 200 {
			t.Errorf("pass at the host of another sandbox: got %d %s, want a rejection", a.Status, a.Body)
		}
		if a := r.do("GET", server, "", "Service-Worker", "script"); a.Status != 403 {
			t.Errorf("service worker: got %d, want 403", a.Status)
		}
	}
}

// A sandbox's server also serves its ports by path. They must not share its origin.
func TestPortHasItsOwnOrigin(t *testing.T) {
	t.Parallel()
	r := guarded(t, "secret")
	r.create(`{"name":"a"}`, "X-API-Key", "secret")
	own := r.cookie("a.localhost:99", operator)
	a := r.do("GET", "/proxy/3000/x", "", with(visit, "Host", "a.localhost:99", "Cookie", own)...)
	if to := a.Header.Get("Location"); a.Status != 303 || !strings.HasPrefix(to, "http://3000-a.localhost:99/x?ticket=") {
		t.Errorf("visited: got %d to %q, want the port's own host", a.Status, to)
	}
	if a := r.do("GET", "/proxy/3000/x", "", "Host", "a.localhost:99", "Cookie", own); a.Status != 403 {
		t.Errorf("fetched: got %d %s, want 403", a.Status, a.Body)
	}
	a = r.do("GET", "/proxy/3000/x", "", "Host", "a.localhost:99", "X-API-Key", "secret")
	if a.Status != 200 || !strings.HasPrefix(a.Header.Get("Content-Security-Policy"), "sandbox ") {
		t.Errorf("program: got %d %v, want 200 without an origin", a.Status, a.Header)
	}
	// A frame does not get the cookies of another host, so it gets a pass.
	framed := []string{"Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "iframe", "Sec-Fetch-Site", "same-origin", "Accept", "text/html"}
	a = r.do("GET", "/proxy/3000/x", "", with(framed, "Host", "a.localhost:99", "Cookie", own)...)
	if to := a.Header.Get("Location"); a.Status != 303 ||
		!strings.HasPrefix(to, "http://hub.example.com:99/sandbox/a/~") || !strings.HasSuffix(to, "/proxy/3000/x") {
		t.Errorf("framed: got %d to %q, want a pass at the hub", a.Status, to)
	}
	// Other sites cannot frame a page of the server, which prevents clickjacking.
	if a := r.do("GET", "/x", "", "Host", "a.localhost:99", "Cookie",
		own); a.Header.Get("Content-Security-Policy") != "frame-ancestors 'self'" {
		t.Errorf("got %v, want frame-ancestors", a.Header)
	}
	// Without a session, a browser is redirected to the same page at the hub.
	a = r.do("GET", "/x?y=1", "", with(visit, "Host", "3000-a.localhost:99")...)
	if to := a.Header.Get("Location"); a.Status != 303 || to != "http://hub.example.com:99/sandbox/a/proxy/3000/x?y=1" {
		t.Errorf("got %d to %q, want the page at the hub", a.Status, to)
	}
}

// The headers of a site apply to that site only.
func TestHeadersOfSite(t *testing.T) {
	t.Parallel()
	r := newRig(t, setup{more: func(g *guestServer) {
		g.mux.HandleFunc("/give", func(w http.ResponseWriter, _ *http.Request) {
			h := w.Header()
			h.Set("Clear-Site-Data", `"*"`)
			h.Set("Strict-Transport-Security", "max-age=1; includeSubDomains")
			h.Add("Set-Cookie", "k=v; Domain=localhost; Path=/x")
			h.Add("Set-Cookie", auth.CookiePrefix+"x=y")
			h.Add("Content-Security-Policy", "default-src 'self'")
		})
	}})
	r.create(`{"name":"a"}`)
	for host, policy := range map[string]string{"a.localhost": "default-src 'self'|frame-ancestors 'self'",
		"3000-a.localhost": "default-src 'self'"} {
		h := r.do("GET", "/give", "", "Host", host).Header
		if h.Get("Clear-Site-Data")+h.Get("Strict-Transport-Security") != "" ||
			strings.Join(h["Set-Cookie"], "|") != "k=v; Path=/x" || strings.Join(h["Content-Security-Policy"], "|") != policy {
			t.Errorf("%s: got %v, want headers for this host only, and the policy %s", host, h, policy)
		}
	}
}

// A name that looks like a port of another sandbox gives no access to it.
func TestNameLikePort(t *testing.T) {
	t.Parallel()
	r := guarded(t, "secret")
	r.create(`{"name":"a"}`, "X-API-Key", "secret")
	o := r.create(`{"name":"3000-a"}`, "X-API-Key", "secret")
	session := r.cookie("localhost", operator)
	a := r.do("GET", "/sandbox/3000-a/x", "", with(visit, "Host", "localhost", "Cookie", session)...)
	if to := a.Header.Get("Location"); !strings.HasPrefix(to, "http://"+o.ID+".localhost/x?ticket=") {
		t.Errorf("got %d to %q, want the host of its ID", a.Status, to)
	}
	if s := r.seen("GET", "/", "", "Host", "3000-a.localhost", "X-API-Key", "secret"); s.Header.Get("X-Aio-Proxy-Port") != "3000" {
		t.Errorf("got %+v, want port 3000 of a", s)
	}
}

// The control API at api.{domain} is for programs: no page has its origin, and all clients
// need a key.
func TestControlHost(t *testing.T) {
	t.Parallel()
	for _, key := range []string{"secret", ""} {
		r := guarded(t, key)
		if a := r.do("POST", "/api/v1/sandbox", `{"name":"api"}`, "X-API-Key", key); a.Status != 400 || !strings.Contains(a.Body, "reserved") {
			t.Errorf("sandbox named api: got %d %s, want a rejection", a.Status, a.Body)
		}
		r.create(`{"name":"a"}`, "X-API-Key", key)
		if a := r.do("POST", "/api/v1/sandbox/a/fork", `{"names":["api"]}`, "X-API-Key", key); a.Status != 400 {
			t.Errorf("fork named api: got %d %s, want a rejection", a.Status, a.Body)
		}
		given := []string{"Host", "api.localhost", "X-API-Key", "e2b_0000"}
		if key != "" {
			given[3] = key
		}
		if a := r.do("GET", "/v2/sandboxes", "", given...); a.Status != 200 {
			t.Errorf("program: got %d %s, want the list", a.Status, a.Body)
		}
		if a := r.do("GET", "/v2/sandboxes", "", with(given, "Sec-Fetch-Mode", "cors")...); a.Status != 200 {
			t.Errorf("program on Node.js: got %d %s, want the list", a.Status, a.Body)
		}
		for name, headers := range map[string][]string{
			"page of the same origin":   {"Origin", "http://api.localhost", "Sec-Fetch-Site", "same-origin", "Sec-Fetch-Mode", "cors"},
			"page, origin alone":        {"Origin", "http://api.localhost"},
			"page without an origin":    {"Sec-Fetch-Site", "same-origin"},
			"visit":                     visit,
			"page that knows its user":  {"Sec-Fetch-User", "?1"},
			"page with storage request": {"Sec-Fetch-Storage-Access", "none"},
		} {
			for _, path := range []string{"/v2/sandboxes", "/sandboxes", "/", "/terminal", "/sandbox/a/", "/api/v1/sandbox"} {
				if a := r.do("GET", path, "", with(given, headers...)...); a.Status < 400 {
					t.Errorf("%s, %s: got %d %s, want a rejection", path, name, a.Status, a.Body)
				}
			}
		}
		for _, path := range []string{"/v2/sandboxes", "/api/v1/sandbox", "/mcp", "/"} {
			if a := r.do("GET", path, "", "Host", "api.localhost"); a.Status < 400 {
				t.Errorf("%s without a key: got %d %s, want a rejection", path, a.Status, a.Body)
			}
		}
		if a := r.do("GET", "/api/v1/sandbox", "", given...); a.Status != 404 {
			t.Errorf("another API at the same host: got %d %s, want 404", a.Status, a.Body)
		}
	}
}

// A pass expires with its session, and other sessions cannot use its URL.
func TestPassExpiresWithSession(t *testing.T) {
	t.Parallel()
	r := guarded(t, "secret")
	host := strings.TrimPrefix(r.server.URL, "http://")
	r.create(`{"name":"a"}`, "X-API-Key", "secret")
	session, other := r.cookie(host, operator), r.cookie(host, operator)
	at := r.do("GET", "/sandbox/a/terminal", "", with(visit, "Cookie", session)...).Header.Get("Location")
	opaque := []string{"Origin", "null", "Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "cors"}
	if a := r.do("POST", at, "", opaque...); a.Status != 200 {
		t.Fatalf("request of the page: got %d %s, want 200", a.Status, a.Body)
	}
	if a := r.do("GET", at, "", with(visit, "Cookie", session)...); a.Status != 200 {
		t.Errorf("window of the session: got %d %s, want the page", a.Status, a.Body)
	}
	form := []string{"Origin", "null", "Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document"}
	if a := r.do("POST", at, "", form...); a.Status != 200 { // cookies with SameSite=Lax are not sent with it
		t.Errorf("form of the page: got %d to %q, want its reply", a.Status, a.Header.Get("Location"))
	}
	for name, headers := range map[string][]string{"without a session": visit, "in another session": with(visit, "Cookie", other)} {
		if a := r.do("GET", at, "", headers...); a.Status != 303 || a.Header.Get("Location") != "/sandbox/a/terminal" {
			t.Errorf("copied URL %s: got %d to %q, want the address without the pass", name, a.Status, a.Header.Get("Location"))
		}
	}
	site := r.do("GET", "/sandbox/a/", "", with(visit, "Cookie", r.cookie("localhost", operator), "Host",
		"localhost")...).Header.Get("Location")
	if !strings.HasPrefix(site, "http://a.localhost/?ticket=") {
		t.Errorf("got %q, want the site with a ticket", site)
	}
	if a := r.do("POST", "/sign-out", "", "Cookie", session, "Origin", "http://"+host, "Sec-Fetch-Site", "same-origin"); a.Status != 303 {
		t.Fatalf("sign out: got %d %s, want 303", a.Status, a.Body)
	}
	if a := r.do("POST", at, "", opaque...); a.Status != 401 {
		t.Errorf("pass after signing out: got %d %s, want 401", a.Status, a.Body)
	}
	if a := r.do("GET", "/api/v1/sandbox", "", "Cookie", other, "Sec-Fetch-Site", "same-origin"); a.Status != 200 {
		t.Errorf("another session: got %d %s, want it to last", a.Status, a.Body)
	}
}
