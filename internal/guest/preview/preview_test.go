package preview_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/auth"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/guest/preview"
	"github.com/cove-sandbox/cove/internal/surface/rest"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// rig is the server of a sandbox with previews and authentication.
type rig struct {
	t      *testing.T
	svc    *preview.Service
	server *httptest.Server
	client *http.Client
}

func newRig(t *testing.T, cfg preview.Config, sign auth.Config) *rig {
	t.Helper()
	svc := preview.New(cfg)
	own := op.New(op.Spec{Name: "own", Route: "GET /v1/own", Tag: "t", Doc: "Own.", Style: op.Resource},
		func(context.Context, struct{}) (string, error) { return "own", nil })
	table := op.NewTable(svc.Ops(), []op.Op{own})
	sign.Open = true
	guard := auth.New(sign)
	handler := rest.New(rest.Config{Table: table, Guard: guard.Wrap, Front: svc.Front, Base: func(r *http.Request) *url.URL {
		return auth.Base(r, nil)
	}})
	server := httptest.NewServer(handler)
	r := &rig{t: t, svc: svc, server: server, client: &http.Client{
		Transport:     &http.Transport{DisableCompression: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	t.Cleanup(func() {
		r.client.CloseIdleConnections()
		server.CloseClientConnections()
		svc.Close()
		svc.Close()
		server.Close()
	})
	return r
}

// do sends a request; headers are pairs. The header Host is the request's host.
func (r *rig) do(method, path, body string, header ...string) (*http.Response, string) {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), method, r.server.URL, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	path, req.URL.RawQuery, _ = strings.Cut(path, "?")
	req.URL.Opaque = path
	for i := 0; i+1 < len(header); i += 2 {
		if header[i] == "Host" {
			req.Host = header[i+1]
		} else {
			req.Header.Add(header[i], header[i+1])
		}
	}
	res, err := r.client.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return res, string(b)
}

// seen is what a service saw of a request.
type seen struct {
	Method, URI, Host, Body string
	Header                  http.Header
}

// service starts a server on a loopback address. It responds with the request that it received, unless handle is given.
func service(t *testing.T, address string, handle http.HandlerFunc) int {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	if handle == nil {
		handle = func(w http.ResponseWriter, r *http.Request) {
			b, _ := io.ReadAll(r.Body)
			w.Header().Set("Content-Type", "application/json")
			json.NewEncoder(w).Encode(seen{r.Method, r.RequestURI, r.Host, string(b), r.Header})
		}
	}
	server := &httptest.Server{Listener: l, Config: &http.Server{Handler: handle}}
	server.Start()
	t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	return l.Addr().(*net.TCPAddr).Port
}

func parse(t *testing.T, body string) seen {
	t.Helper()
	var s seen
	if err := json.Unmarshal([]byte(body), &s); err != nil {
		t.Fatalf("got %v in %s, want no error", err, body)
	}
	return s
}

func TestPortIsSelectedByPathHeaderOrHost(t *testing.T) {
	t.Parallel()
	r := newRig(t, preview.Config{}, auth.Config{})
	for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		port := strconv.Itoa(service(t, address, nil))
		for _, c := range []struct {
			name, path string
			header     []string
			uri        string
			prefix     string
		}{
			{"prefix stripped", "/proxy/" + port + "/a/b?x=1&y", nil, "/a/b?x=1&y", "/proxy/" + port},
			{"root", "/proxy/" + port + "/", nil, "/", "/proxy/" + port},
			{"not cleaned", "/proxy/" + port + "/https://x//../y/%2e%2F?a;b=%zz", nil, "/https://x//../y/%2e%2F?a;b=%zz", "/proxy/" + port},
			{"prefix kept", "/absproxy/" + port + "/a//b?x", nil, "/absproxy/" + port + "/a//b?x", ""},
			{"prefix kept, bare", "/absproxy/" + port, nil, "/absproxy/" + port, ""},
			{"header", "/v1/own?q", []string{"x-aio-proxy-port", port}, "/v1/own?q", ""},
			{"header before path", "/proxy/1/x", []string{"X-AIO-Proxy-Port", port}, "/proxy/1/x", ""},
			{"host", "/v1/own", []string{"Host", port + "-any.localhost"}, "/v1/own", ""},
			{"header before host", "/x", []string{"Host", "1-any.localhost", "X-Aio-Proxy-Port", port}, "/x", ""},
			{"behind a prefix", "/proxy/" + port + "/x", []string{"X-Forwarded-Prefix", "/sandbox/a",
				"X-Forwarded-Proto", "https", "X-Forwarded-Host", "hub.example"}, "/x", "/sandbox/a/proxy/" + port},
			{"kept behind a prefix", "/absproxy/" + port + "/x", []string{"X-Forwarded-Prefix", "/sandbox/a"},
				"/absproxy/" + port + "/x", "/sandbox/a"},
		} {
			t.Run(c.name+" "+address, func(t *testing.T) {
				res, body := r.do("POST", c.path, "data", c.header...)
				if res.StatusCode != 200 {
					t.Fatalf("got %d %s, want status 200", res.StatusCode, body)
				}
				s := parse(t, body)
				if s.Method != "POST" || s.URI != c.uri || s.Body != "data" || s.Header.Get("X-Forwarded-Prefix") != c.prefix {
					t.Errorf(`got %+v, want method "POST", URI %q, body "data" and header X-Forwarded-Prefix %q`, s, c.uri, c.prefix)
				}
				if _, ok := s.Header["X-Aio-Proxy-Port"]; ok {
					t.Error("the service received the header that selects the port")
				}
				for _, h := range []string{"X-Forwarded-Host", "X-Forwarded-Proto", "X-Request-Id"} {
					if s.Header.Get(h) == "" {
						t.Errorf("%s is missing", h)
					}
				}
				if s.Header.Get("X-Forwarded-For") != "127.0.0.1" {
					t.Errorf(`forwarded for %q, want header X-Forwarded-For "127.0.0.1"`, s.Header.Get("X-Forwarded-For"))
				}
			})
		}
	}
	if res, body := r.do("GET", "/v1/own", ""); res.StatusCode != 200 || !strings.Contains(body, "own") {
		t.Errorf(`request to the sandbox itself: got %d %s, want status 200 and body that contains "own"`, res.StatusCode, body)
	}
	own := r.server.Listener.Addr().(*net.TCPAddr).Port
	if res, body := r.do("GET", "/v1/own", "", "Host", fmt.Sprintf("%d-any.localhost", own)); res.StatusCode != 200 ||
		!strings.Contains(body, "own") {
		t.Errorf(`host name with the port of the sandbox: got %d %s, want status 200 and body that contains "own"`,
			res.StatusCode, body)
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	closed := service(t, "127.0.0.1:0", nil)
	r := newRig(t, preview.Config{Deny: func(port int) bool { return port == closed },
		Open: func() []int { return []int{5173, 3000, 3000} }}, auth.Config{})
	free := freePort(t)
	own := strconv.Itoa(r.server.Listener.Addr().(*net.TCPAddr).Port)
	for _, c := range []struct {
		name, path string
		header     []string
		status     int
		says       string
	}{
		{"nothing listens", "/proxy/" + free + "/", nil, 502, "nothing answers on port " + free},
		{"open ports are named", "/proxy/" + free + "/", nil, 502, "Open ports: 3000, 5173"},
		{"nothing listens, by header", "/", []string{"X-Aio-Proxy-Port", free}, 502, "nothing answers on port " + free},
		{"a page for browsers", "/proxy/" + free + "/", []string{"Accept", "text/html,*/*"}, 502, "<h1>Nothing runs on port " + free},
		{"own port", "/proxy/" + own + "/v1/own", nil, 403, "port " + own + " is reserved for the sandbox"},
		{"own port, prefix kept", "/absproxy/" + own + "/v1/own", nil, 403, "is reserved for the sandbox"},
		{"own port by header", "/v1/own", []string{"X-Aio-Proxy-Port", own}, 403, "is reserved for the sandbox"},
		{"closed port", "/proxy/" + strconv.Itoa(closed) + "/", nil, 403, "is reserved for the sandbox"},
		{"closed port by host", "/", []string{"Host", strconv.Itoa(closed) + "-x.localhost"}, 403, "is reserved for the sandbox"},
		{"no number", "/proxy/abc/", nil, 400, "invalid port in path"},
		{"another host", "/proxy/example.com:80/", nil, 400, "invalid port in path"},
		{"user and host", "/proxy/80@example.com/", nil, 400, "invalid port in path"},
		{"too large", "/absproxy/65536/", nil, 400, "invalid port in path"},
		{"zero", "/proxy/0/", nil, 400, "invalid port in path"},
		{"leading zero", "/proxy/080/", nil, 400, "invalid port in path"},
		{"escaped", "/proxy/%38080/", nil, 400, "invalid port in path"},
		{"header with a space", "/", []string{"X-Aio-Proxy-Port", free + " "}, 502, "nothing answers on port " + free},
		{"header with sign", "/", []string{"X-Aio-Proxy-Port", "+80"}, 400, "invalid port in header"},
		{"header with host", "/", []string{"X-Aio-Proxy-Port", "example.com"}, 400, "invalid port in header"},
		{"empty header", "/", []string{"X-Aio-Proxy-Port", ""}, 400, "invalid port in header"},
		{"two headers", "/", []string{"X-Aio-Proxy-Port", "80", "X-Aio-Proxy-Port", "81"}, 400, "invalid port in header"},
		{"no such route", "/proxy", nil, 404, "Not Found"},
	} {
		t.Run(c.name, func(t *testing.T) {
			res, body := r.do("GET", c.path, "", c.header...)
			if res.StatusCode != c.status || !strings.Contains(body, c.says) {
				t.Errorf("got %d %s, want %d with %q", res.StatusCode, body, c.status, c.says)
			}
		})
	}
}

// freePort returns a port that no process listens on. It is bound, so that no other test gets it.
func freePort(t *testing.T) string {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	at, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	return strconv.Itoa(at.(*unix.SockaddrInet4).Port)
}

func TestServicesGetNoCredentialsOfTheSandbox(t *testing.T) {
	t.Parallel()
	port := strconv.Itoa(service(t, "127.0.0.1:0", nil))
	r := newRig(t, preview.Config{}, auth.Config{Token: "shared-token", APIKey: "the-api-key"})
	if res, _ := r.do("GET", "/proxy/"+port+"/", ""); res.StatusCode != 401 {
		t.Fatalf("without credentials: got %d, want status 401", res.StatusCode)
	}
	if res, _ := r.do("GET", "/", "", "X-Aio-Proxy-Port", port); res.StatusCode != 401 {
		t.Fatalf("without credentials, by header: got %d, want status 401", res.StatusCode)
	}
	if res, _ := r.do("GET", "/", "", "Host", port+"-x.localhost"); res.StatusCode != 401 {
		t.Fatalf("without credentials, by host: got %d, want status 401", res.StatusCode)
	}
	res, body := r.do("GET", "/proxy/"+port+"/?a=1", "", "Authorization", "Bearer shared-token", "X-API-Key", "the-api-key",
		"Cookie", "mine=1; cove_session_0123456789ab=secret-session; other=2")
	s := parse(t, body)
	if res.StatusCode != 200 || strings.Contains(body, "shared-token") || strings.Contains(body, "the-api-key") ||
		strings.Contains(body, "secret-session") {
		t.Errorf("%d %s", res.StatusCode, body)
	}
	if s.Header.Get("Cookie") != "mine=1; other=2" || s.URI != "/?a=1" {
		t.Errorf(`got %+v, want header Cookie "mine=1; other=2" and URI "/?a=1"`, s)
	}
	// Other credentials are passed to the service.
	_, body = r.do("GET", "/proxy/"+port+"/", "", "X-API-Key", "the-api-key", "Authorization", "Bearer the-service's")
	if s := parse(t, body); s.Header.Get("Authorization") != "Bearer the-service's" || s.Header.Get("X-Api-Key") != "" {
		t.Errorf(`got %+v, want header Authorization "Bearer the-service's" and no header X-Api-Key`, s.Header)
	}
}

func TestSessionCookieIsRemoved(t *testing.T) {
	t.Parallel()
	port := service(t, "127.0.0.1:0", nil)
	svc := preview.New(preview.Config{})
	defer svc.Close()
	req := httptest.NewRequest("GET", fmt.Sprintf("/proxy/%d/", port), nil)
	req.Header.Set("Cookie", "cove_session_ab=secret; kept=1")
	w := httptest.NewRecorder()
	svc.ServeHTTP(w, req)
	if s := parse(t, w.Body.String()); s.Header.Get("Cookie") != "kept=1" {
		t.Errorf(`got %+v, want header Cookie "kept=1"`, s.Header)
	}
}

// startResponder starts a service whose response has the location and cookies of the query, and returns its port. PORT stands
// for the port.
func startResponder(t *testing.T) string {
	t.Helper()
	var port int
	port = service(t, "127.0.0.1:0", func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h["Content-Type"] = nil
		h["Date"] = nil
		if l := r.URL.Query().Get("location"); l != "" {
			h.Set("Location", strings.ReplaceAll(l, "PORT", strconv.Itoa(port)))
		}
		for _, c := range r.URL.Query()["cookie"] {
			h.Add("Set-Cookie", strings.ReplaceAll(c, "PORT", strconv.Itoa(port)))
		}
		h.Set("Service-Worker-Allowed", "/")
		h.Set("Strict-Transport-Security", "max-age=1")
		h.Set("X-Request-Id", "theirs")
		w.WriteHeader(302)
	})
	return strconv.Itoa(port)
}

// rewriteCase is a header value of a service and its form for the client.
type rewriteCase struct {
	path       string
	header     []string
	give, want string
}

func TestLocationsAreRewritten(t *testing.T) {
	t.Parallel()
	r := newRig(t, preview.Config{}, auth.Config{})
	p := startResponder(t)
	strip, keep := "/proxy/"+p+"/", "/absproxy/"+p+"/"
	hub := []string{"X-Forwarded-Prefix", "/sandbox/a", "X-Forwarded-Host", "hub.example", "X-Forwarded-Proto", "https"}
	byHost := []string{"Host", p + "-x.localhost"}
	for _, c := range []rewriteCase{
		{strip, nil, "/login?a=/b#c", "/proxy/" + p + "/login?a=/b#c"},
		{strip, nil, "login", "login"},
		{strip, nil, "/proxy/PORT/there", "/proxy/" + p + "/there"},
		{strip, nil, "http://localhost:PORT/x", "/proxy/" + p + "/x"},
		{strip, nil, "http://127.0.0.1:PORT/x", "/proxy/" + p + "/x"},
		{strip, nil, "http://[::1]:PORT", "/proxy/" + p + "/"},
		{strip, nil, "http://localhost:PORT//evil.example/", "/proxy/" + p + "/evil.example/"},
		{strip, nil, r.server.URL + "/x", "/proxy/" + p + "/x"},
		{strip, nil, "https://example.com/x", "https://example.com/x"},
		{strip, nil, "//example.com/x", "//example.com/x"},
		{strip, hub, "/x", "/sandbox/a/proxy/" + p + "/x"},
		{strip, hub, "https://hub.example/x", "/sandbox/a/proxy/" + p + "/x"},
		{strip, hub, "/sandbox/a/proxy/PORT/x", "/sandbox/a/proxy/" + p + "/x"},
		{keep, nil, "/absproxy/PORT/x", "/absproxy/" + p + "/x"},
		{keep, hub, "/absproxy/PORT/x", "/sandbox/a/absproxy/" + p + "/x"},
		{keep, nil, "/x", "/absproxy/" + p + "/x"},
		{"/", byHost, "/x", "/x"},
		{"/", byHost, "http://localhost:PORT/x", "/x"},
	} {
		res, _ := r.do("GET", c.path+"?location="+url.QueryEscape(c.give), "", c.header...)
		if got := res.Header.Get("Location"); got != c.want {
			t.Errorf("%s %v: location %s became %s, want %s", c.path, c.header, c.give, got, c.want)
		}
		if sw := res.Header.Get("Service-Worker-Allowed"); c.header == nil && sw != strings.TrimSuffix(c.path, "/")+"/" {
			t.Errorf("%s: got scope %s for service workers, want %s/", c.path, sw, strings.TrimSuffix(c.path, "/"))
		}
		if _, guessed := res.Header["Content-Type"]; guessed || res.Header.Get("X-Content-Type-Options") != "" ||
			len(res.Header["X-Request-Id"]) != 1 || res.Header.Get("X-Request-Id") == "theirs" {
			t.Errorf("headers %v", res.Header)
		}
		if c.path != "/" && res.Header.Get("Strict-Transport-Security") != "" {
			t.Error("a service set Strict-Transport-Security for the whole host")
		}
	}
}

func TestCookiesAreRewritten(t *testing.T) {
	t.Parallel()
	r := newRig(t, preview.Config{}, auth.Config{})
	p := startResponder(t)
	strip, keep := "/proxy/"+p+"/", "/absproxy/"+p+"/"
	hub := []string{"X-Forwarded-Prefix", "/sandbox/a", "X-Forwarded-Host", "hub.example", "X-Forwarded-Proto", "https"}
	byHost := []string{"Host", p + "-x.localhost"}
	for _, c := range []rewriteCase{
		{strip, nil, "a=1", "a=1; Path=/proxy/" + p + "/"},
		{strip, nil, "a=1; Path=/; HttpOnly; Domain=localhost", "a=1; HttpOnly; Path=/proxy/" + p + "/"},
		{strip, nil, "a=1; path=/app", "a=1; Path=/proxy/" + p + "/app"},
		{strip, hub, "a=1; Path=/", "a=1; Path=/sandbox/a/proxy/" + p + "/"},
		{keep, hub, "a=1; Path=/absproxy/PORT/", "a=1; Path=/sandbox/a/absproxy/" + p + "/"},
		{keep, nil, "a=1; Path=/", "a=1; Path=/absproxy/" + p + "/"},
		{"/", byHost, "a=1; Path=/; Secure", "a=1; Path=/; Secure"},
		{"/", byHost, "cove_session_00=x; Path=/", ""},
		{strip, nil, "cove_session_00=x; Path=/", ""},
	} {
		res, _ := r.do("GET", c.path+"?cookie="+url.QueryEscape(c.give), "", c.header...)
		if got := res.Header.Get("Set-Cookie"); got != c.want {
			t.Errorf("%s %v: cookie %s became %s, want %s", c.path, c.header, c.give, got, c.want)
		}
	}
}

func TestBarePrefixRedirectsToSlash(t *testing.T) {
	t.Parallel()
	r := newRig(t, preview.Config{}, auth.Config{})
	res, _ := r.do("GET", "/proxy/3000?a=b", "")
	if res.StatusCode != 308 || res.Header.Get("Location") != "3000/?a=b" {
		t.Errorf(`got %d %s, want status 308 and header Location "3000/?a=b"`, res.StatusCode, res.Header.Get("Location"))
	}
}

func FuzzFind(f *testing.F) {
	for _, s := range []string{"/proxy/3000/x", "/absproxy/1/", "/proxy/", "/proxy/%33/", "/proxy/99999/",
		"//proxy/1/", "/proxy/1//../..%2f"} {
		f.Add(s, "", "localhost")
		f.Add("/", s, "3000-x")
	}
	svc := preview.New(preview.Config{Deny: func(int) bool { return true }})
	f.Fuzz(func(t *testing.T, path, header, host string) {
		u, err := url.ParseRequestURI(path)
		if err != nil {
			return
		}
		r := httptest.NewRequest("GET", "/", nil)
		r.URL, r.Host = u, host
		if header != "" {
			r.Header.Set("X-Aio-Proxy-Port", header)
		}
		// Every result must be a route of the table, and its handler must accept it.
		svc.Front(http.HandlerFunc(func(_ http.ResponseWriter, inner *http.Request) {
			if inner == r {
				return
			}
			if p := inner.URL.Path; !strings.HasPrefix(p, "/proxy/") && !strings.HasPrefix(p, "/absproxy/") || strings.Contains(p, "..") {
				t.Errorf(`%q %q %q leads to %q, want a path below "/proxy/" or "/absproxy/" without ".."`, path, header, host, p)
			}
			w := httptest.NewRecorder()
			svc.ServeHTTP(w, inner)
			if w.Code != 400 && w.Code != 403 {
				t.Errorf("%q %q %q: got %d, want status 400 or 403", path, header, host, w.Code)
			}
		})).ServeHTTP(httptest.NewRecorder(), r)
	})
}
