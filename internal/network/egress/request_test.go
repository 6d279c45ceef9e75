package egress

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// parseTarget returns a request as the proxy receives it.
func parseTarget(t *testing.T, method, target string, header ...string) *http.Request {
	t.Helper()
	text := method + " " + target + " HTTP/1.1\r\nHost: api.test\r\n"
	for _, h := range header {
		text += h + "\r\n"
	}
	r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(text + "\r\n")))
	if err != nil {
		t.Fatalf("%s %s: %v", method, target, err)
	}
	return r
}

func TestRequestRules(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ rules, allowed, denied string }{
		{"GET api.test/v1/*", "GET /v1/ GET /v1/x GET /v1/x/y?z=/../ HEAD /v1/x",
			"POST /v1/x GET /v1 GET / GET /v2/x GET /V1/x GET /v1x GET * get /v1/x"},
		{"GET,POST api.test", "GET / POST /x?y", "PUT / DELETE /x OPTIONS * TRACE /"},
		{"api.test/v1/*/files", "GET /v1/a/files PUT /v1/b/files",
			"GET /v1/files GET /v1//files GET /v1/a/b/files GET /v1/a/files/ GET /v1/a%2Fb/files"},
		{"api.test/@scope*", "GET /@scope/x GET /@scope%2fx GET /@scope", "GET /scope GET /@other%2f@scope"},
		{"api.test:80/*", "", "GET /"}, // the host is not read at another port, and not allowed there
		{"!DELETE api.test|!api.test/Admin*|api.test", "GET / POST /x",
			"DELETE /x delete /x GET /admin GET /ADMIN/x GET //admin GET /%61dmin GET /admin;x/y"},
		{"api.test|!api.test/admin/*", "GET /admin/x DELETE /", ""}, // the first rule that matches decides
		{"!api.test/v1/secret*|*.test/v1/*|!*", "GET /v1/x", "GET /v1/secret GET /v1/secret/x GET /v1//secret GET /v2"},
	} {
		rules, err := Parse(sandbox.Network{Mode: sandbox.NetworkAllow, Allow: strings.Split(c.rules, "|")})
		if err != nil {
			t.Fatal(err)
		}
		check := func(list string, want bool) {
			words := strings.Fields(list)
			for i := 0; i+1 < len(words); i += 2 {
				_, err := rules.decide("api.test", 443)
				if err == nil {
					err = rules.allowRequest("api.test", 443, parseTarget(t, words[i], words[i+1]))
				}
				if (err == nil) != want || err != nil && !Denied(err) {
					t.Errorf("%s, %s %s: got %v, want it allowed: %v", c.rules, words[i], words[i+1], err, want)
				}
			}
		}
		check(c.allowed, true)
		check(c.denied, false)
	}
	for _, rule := range []string{"get api.test/", "GET  api.test", "GET,api.test", "GET, api.test", "GET api.test/a b", "api.test/a?b",
		"api.test/%2e",
		"api.test/../x", "api.test/./x", "api.test//x", "api.test/a*b", "api.test/*a/x", "api.test/**", "api.test/é",
		"api.test/a;b", "api.test/a'b", `api.test/a\b`,
		"GET 192.0.2.7", "192.0.2.7/x", "192.0.2.0/24/x", "[2001:db8::1]:80/x", "GET 192.0.2.0/24", "GET ", "GET /x", "http://api.test/x",
		"api.test/" + strings.Repeat("a", 2000)} {
		if _, err := Parse(sandbox.Network{Mode: sandbox.NetworkAllow, Allow: []string{rule}}); err == nil {
			t.Errorf("%q was accepted, want an error", rule)
		}
	}
	if _, err := New(Config{Network: sandbox.Network{Mode: sandbox.NetworkAllow, Allow: []string{"GET api.test"}}}); err == nil {
		t.Error("rules for requests were accepted without an authority")
	}
}

// evasions are requests whose method or path some server reads as one outside of GET /v1/*.
var evasions = map[string]string{
	"dot segments":                 "GET /v1/../admin HTTP/1.1\r\nHost: named.test:PORT",
	"escaped dots":                 "GET /v1/%2e%2e/admin HTTP/1.1\r\nHost: named.test:PORT",
	"mixed dots":                   "GET /v1/.%2E/admin HTTP/1.1\r\nHost: named.test:PORT",
	"escaped slash":                "GET /v1/..%2fadmin HTTP/1.1\r\nHost: named.test:PORT",
	"escaped slash in front":       "GET /v1%2f..%2fadmin HTTP/1.1\r\nHost: named.test:PORT",
	"double escape":                "GET /v1/%252e%252e/admin HTTP/1.1\r\nHost: named.test:PORT",
	"double escape of slash":       "GET /v1/..%252fadmin HTTP/1.1\r\nHost: named.test:PORT",
	"unicode escape":               "GET /v1/%u002e%u002e/admin HTTP/1.1\r\nHost: named.test:PORT",
	"overlong UTF-8":               "GET /v1/%c0%ae%c0%ae/admin HTTP/1.1\r\nHost: named.test:PORT",
	"backslash":                    "GET /v1/..\\admin HTTP/1.1\r\nHost: named.test:PORT",
	"escaped backslash":            "GET /v1/..%5cadmin HTTP/1.1\r\nHost: named.test:PORT",
	"parameters":                   "GET /v1/..;x=1/admin HTTP/1.1\r\nHost: named.test:PORT",
	"dots and spaces":              "GET /v1/..%20/admin HTTP/1.1\r\nHost: named.test:PORT",
	"three dots":                   "GET /v1/.../admin HTTP/1.1\r\nHost: named.test:PORT",
	"NUL":                          "GET /v1/%00/../admin HTTP/1.1\r\nHost: named.test:PORT",
	"NUL at the end":               "GET /v1/x%00.html HTTP/1.1\r\nHost: named.test:PORT",
	"line break":                   "GET /v1/%0d%0aX:%20y HTTP/1.1\r\nHost: named.test:PORT",
	"two slashes":                  "GET //admin HTTP/1.1\r\nHost: named.test:PORT",
	"two slashes and the prefix":   "GET //v1/../admin HTTP/1.1\r\nHost: named.test:PORT",
	"absolute form":                "GET SCHEME://named.test:PORT/admin HTTP/1.1\r\nHost: named.test:PORT",
	"absolute form, dots":          "GET SCHEME://named.test:PORT/v1/../admin HTTP/1.1\r\nHost: named.test:PORT",
	"absolute form, other host":    "GET SCHEME://other.test:PORT/v1/x HTTP/1.1\r\nHost: named.test:PORT",
	"other host":                   "GET /v1/x HTTP/1.1\r\nHost: other.test:PORT",
	"two hosts":                    "GET /v1/x HTTP/1.1\r\nHost: named.test:PORT\r\nHost: other.test:PORT",
	"authority form":               "CONNECT named.test:PORT HTTP/1.1\r\nHost: named.test:PORT",
	"another method":               "POST /v1/x HTTP/1.1\r\nHost: named.test:PORT\r\nContent-Length: 0",
	"lower case method":            "get /v1/x HTTP/1.1\r\nHost: named.test:PORT",
	"method override":              "GET /v1/x HTTP/1.1\r\nHost: named.test:PORT\r\nX-HTTP-Method-Override: DELETE",
	"method override, underscores": "GET /v1/x HTTP/1.1\r\nHost: named.test:PORT\r\nX_HTTP_Method_Override: DELETE",
	"method in the query":          "GET /v1/x?a=1&%5Fmethod=DELETE HTTP/1.1\r\nHost: named.test:PORT",
	"path in a header":             "GET /v1/x HTTP/1.1\r\nHost: named.test:PORT\r\nX-Original-URL: /admin",
	"upgrade to TLS":               "GET /v1/x HTTP/1.1\r\nHost: named.test:PORT\r\nConnection: Upgrade\r\nUpgrade: TLS/1.0",
	"upgrade to two protocols":     "GET /v1/x HTTP/1.1\r\nHost: named.test:PORT\r\nConnection: Upgrade\r\nUpgrade: TLS/1.0\r\nUpgrade: h2c",
	"HTTP/2 preface":               "PRI * HTTP/2.0\r\n\r\nSM",
	"second request":               "GET /v1/x HTTP/1.1\r\nHost: named.test:PORT\r\n\r\nGET /admin HTTP/1.1\r\nHost: named.test:PORT",
	"request in a body": "GET /v1/x HTTP/1.1\r\nHost: named.test:PORT\r\nContent-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" +
		"GET /admin HTTP/1.1\r\nHost: named.test:PORT",
	"two lengths": "GET /v1/x HTTP/1.1\r\nHost: named.test:PORT\r\nContent-Length: 0\r\nContent-Length: 60\r\n\r\n" +
		"GET /admin HTTP/1.1\r\nHost: named.test:PORT",
	"space in a header name": "GET /v1/x HTTP/1.1\r\nHost: named.test:PORT\r\nContent-Length : 60\r\n\r\n" +
		"GET /admin HTTP/1.1\r\nHost: named.test:PORT",
}

// TestRequestsCannotEvadeRules: no form of a request reaches a path or method that the rules do not allow, in tunnels with
// TLS, in tunnels without, and through the proxy.
func TestRequestsCannotEvadeRules(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(c *Config) {
		c.Credentials = nil
		c.Network = sandbox.Network{Mode: sandbox.NetworkAllow, Allow: []string{"GET named.test/v1/*"}}
	})
	for name, text := range evasions {
		for _, scheme := range []string{"https", "http"} {
			port, cfg := w.secure, &tls.Config{ServerName: "named.test", RootCAs: w.ours.Pool()}
			if scheme == "http" {
				port, cfg = w.plain, nil
			}
			send := strings.NewReplacer("PORT", port, "SCHEME", scheme).Replace(text) + "\r\nConnection: close\r\n\r\n"
			statuses, body := w.dialogue(t, "named.test:"+port, cfg, send)
			if len(statuses) == 0 || slices.Max(statuses) < 400 {
				t.Errorf("%s, %s: got %v %.100q, want it refused", name, scheme, statuses, body)
			}
		}
		absolute := strings.Replace(strings.ReplaceAll(text, "PORT", w.plain), " /", " http://named.test:"+w.plain+"/", 1)
		if strings.HasPrefix(text, "GET /") && !strings.Contains(name, "host") && !strings.Contains(text, "\r\n\r\n") {
			if status, body := w.raw(t, absolute+"\r\nConnection: close\r\n\r\n"); status < 400 {
				t.Errorf("%s, through the proxy: got %d %q, want it refused", name, status, body)
			}
		}
	}
	for _, r := range w.requests() {
		if !strings.HasPrefix(path.Clean(r.path), "/v1/") || strings.Contains(r.path, "..") || r.body != "" ||
			!strings.HasPrefix(r.host, "named.test:") || strings.Contains(strings.ToLower(fmt.Sprint(r.header)), "override") {
			t.Errorf("the server got %+v, want only requests for /v1/", r)
		}
	}
	denied := 0
	for _, rec := range w.Records() {
		if rec.Verdict == Refused && strings.Contains(rec.Reason, "must not send") {
			denied++
		}
	}
	if denied == 0 {
		t.Error("got no records of refused requests")
	}
}

// TestRequestsAreRead: allowed requests pass, over TLS that the sandbox's authority decrypts and without; refusals are
// explained; and changes of the rules take effect in open connections.
func TestRequestsAreRead(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(c *Config) {
		c.Credentials = nil
		c.Network = sandbox.Network{Mode: sandbox.NetworkAllow, Allow: []string{"GET named.test/v1/*", "other.test"}}
	})
	c := w.trusting(t, "http", w.ours, w.real)
	want := func(url string, status int, text string) {
		t.Helper()
		got, body, err := get(t, c, url)
		if err != nil || got != status || !strings.Contains(body, text) {
			t.Errorf("%s: got %d %q %v, want %d with %q", url, got, body, err, status, text)
		}
	}
	want("https://named.test:"+w.secure+"/v1/a%2Fb?x=y", 200, "fine")
	want("http://named.test:"+w.plain+"/v1/x", 200, "fine")
	want("https://other.test:"+w.secure+"/anything", 200, "fine") // not decrypted: its own certificate
	fix := "cove egress allow NAME 'GET named.test/v2/x'"
	want("https://named.test:"+w.secure+"/v2/x", 403, fix)
	want("http://named.test:"+w.plain+"/v2/x", 403, fix)
	res, err := c.Post("https://named.test:"+w.secure+"/v1/x", "text/plain", strings.NewReader("x"))
	if err != nil || res.StatusCode != 403 {
		t.Errorf("got %v %v, want 403", res, err)
	} else {
		res.Body.Close()
	}
	if err := w.Set(sandbox.Network{Mode: sandbox.NetworkAllow, Allow: []string{"GET named.test/v1/*", "GET named.test/v2/x"}}); err != nil {
		t.Fatal(err)
	}
	want("https://named.test:"+w.secure+"/v2/x", 200, "fine")
	if rec := w.Records(); !slices.ContainsFunc(rec, func(r Record) bool {
		return r.Protocol == "https" && r.Verdict == Refused && strings.Contains(r.Reason, "GET /v2/x to named.test:"+w.secure)
	}) {
		t.Errorf("got %+v, want a record of the refused request", rec)
	}
	// A tunnel that is not read ends when a rule for requests applies to its host.
	if err := w.Set(sandbox.Network{Mode: sandbox.NetworkAllow, Allow: []string{"named.test"}}); err != nil {
		t.Fatal(err)
	}
	tunnel := w.tunnel(t, "named.test:"+w.secure)
	secured := tls.Client(direct{tunnel}, &tls.Config{ServerName: "named.test", RootCAs: w.real.Pool()})
	if err := secured.Handshake(); err != nil {
		t.Fatal(err)
	}
	if err := w.Set(sandbox.Network{Mode: sandbox.NetworkAllow, Allow: []string{"GET named.test/v1/*"}}); err != nil {
		t.Fatal(err)
	}
	if n, _ := io.Copy(io.Discard, tunnel.Conn); n > 1000 {
		t.Errorf("got %d bytes, want the tunnel closed", n)
	}
}

// TestWebSocketsAreRead: a WebSocket is a request with a path.
func TestWebSocketsAreRead(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(c *Config) {
		c.Credentials = nil
		c.Network = sandbox.Network{Mode: sandbox.NetworkAllow, Allow: []string{"GET named.test/ws"}}
	})
	w.stream = func(rw http.ResponseWriter, r *http.Request) {
		if c, err := websocket.Accept(rw, r, nil); err == nil {
			c.Write(r.Context(), websocket.MessageText, []byte("hello"))
			c.Close(websocket.StatusNormalClosure, "")
		}
	}
	options := &websocket.DialOptions{HTTPClient: w.trusting(t, "http", w.ours)}
	c, _, err := websocket.Dial(t.Context(), "wss://named.test:"+w.secure+"/ws", options)
	if err != nil {
		t.Fatal(err)
	}
	if _, b, err := c.Read(t.Context()); err != nil || string(b) != "hello" {
		t.Errorf("got %q %v, want hello", b, err)
	}
	c.CloseNow()
	_, res, err := websocket.Dial(t.Context(), "wss://named.test:"+w.secure+"/other", options)
	if err == nil || res == nil || res.StatusCode != 403 {
		t.Errorf("got %v %v, want 403", res, err)
	}
	testenv.Poll(t, "connections end", func() bool { return w.Stats().Open == 0 })
}
