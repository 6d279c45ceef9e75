package auth

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"path"
	"strings"
	"testing"
	"time"
)

// serveHandler runs any handler on loopback and returns its address.
func serveHandler(t *testing.T, h http.Handler) string {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

func TestBase(t *testing.T) {
	t.Parallel()
	trusted := []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}
	forward := map[string]string{"X-Forwarded-Proto": "https", "X-Forwarded-Host": "Hub.example:10000", "X-Forwarded-Prefix": "/sandbox/a/"}
	const forwarded = "https://hub.example:10000/sandbox/a"
	with := func(k, v string) map[string]string { return map[string]string{k: v} }
	tests := []struct {
		name    string
		remote  string
		host    string
		unix    bool
		tls     bool
		headers map[string]string
		want    string
	}{
		{name: "plain", remote: "192.0.2.1:1", host: "X.example:8080", want: "http://x.example:8080"},
		{name: "TLS", remote: "192.0.2.1:1", host: "x.example", tls: true, want: "https://x.example"},
		{name: "from loopback", remote: "127.0.0.1:1", host: "x", headers: forward, want: forwarded},
		{name: "from IPv6 loopback", remote: "[::1]:1", host: "x", headers: forward, want: forwarded},
		{name: "from mapped loopback", remote: "[::ffff:127.0.0.1]:1", host: "x", headers: forward, want: forwarded},
		{name: "from a trusted proxy", remote: "10.1.2.3:1", host: "x", headers: forward, want: forwarded},
		{name: "from a unix socket", remote: "@", host: "x", unix: true, headers: forward, want: forwarded},
		{name: "from an untrusted address", remote: "10.2.0.1:1", host: "x", headers: forward, want: "http://x"},
		{name: "remote unknown", remote: "", host: "x", headers: forward, want: "http://x"},
		{name: "remote @ over TCP", remote: "@", host: "x", headers: forward, want: "http://x"},
		{name: "several proxies", remote: "127.0.0.1:1", host: "x",
			headers: with("X-Forwarded-Host", "a.example, b.example"), want: "http://a.example"},
		{name: "IPv6 host", remote: "127.0.0.1:1", host: "[2001:DB8::1]:80", want: "http://[2001:db8::1]:80"},
		{name: "bad proto", remote: "127.0.0.1:1", host: "x", headers: with("X-Forwarded-Proto", "javascript"), want: "http://x"},
		{name: "bad forwarded host", remote: "127.0.0.1:1", host: "x", headers: with("X-Forwarded-Host", "evil/@x"), want: "http://x"},
		{name: "user in forwarded host", remote: "127.0.0.1:1", host: "x", headers: with("X-Forwarded-Host", "u@evil"), want: "http://x"},
		{name: "bad host", remote: "127.0.0.1:1", host: "a b", want: "http://localhost"},
		{name: "no host", remote: "127.0.0.1:1", host: "", want: "http://localhost"},
		{name: "prefix of slashes", remote: "127.0.0.1:1", host: "x", headers: with("X-Forwarded-Prefix", "//evil.example"), want: "http://x"},
		{name: "prefix that climbs", remote: "127.0.0.1:1", host: "x", headers: with("X-Forwarded-Prefix", "/a/../b"), want: "http://x"},
		{name: "prefix not absolute", remote: "127.0.0.1:1", host: "x", headers: with("X-Forwarded-Prefix", "a"), want: "http://x"},
		{name: "prefix with an attribute", remote: "127.0.0.1:1", host: "x",
			headers: with("X-Forwarded-Prefix", "/a; Domain=x"), want: "http://x"},
		{name: "prefix encoded", remote: "127.0.0.1:1", host: "x", headers: with("X-Forwarded-Prefix", "/%2e%2e"), want: "http://x"},
		{name: "prefix of one slash", remote: "127.0.0.1:1", host: "x", headers: with("X-Forwarded-Prefix", "/"), want: "http://x"},
		{name: "prefix too long", remote: "127.0.0.1:1", host: "x",
			headers: with("X-Forwarded-Prefix", "/"+strings.Repeat("a", 300)), want: "http://x"},
	}
	for _, tt := range tests {
		r := request(tt.remote, tt.host, tt.unix)
		if tt.tls {
			r.TLS = &tls.ConnectionState{}
		}
		for k, v := range tt.headers {
			r.Header.Set(k, v)
		}
		if got := Base(r, trusted).String(); got != tt.want {
			t.Errorf("%s: got %s, want %s", tt.name, got, tt.want)
		}
	}
	// The server's own address replaces an invalid host.
	r := request("127.0.0.1:1", "a b", false)
	r = r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, &net.TCPAddr{IP: net.IPv6loopback, Port: 8080}))
	if got := Base(r, nil).String(); got != "http://[::1]:8080" {
		t.Errorf("own address: got %s, want http://[::1]:8080", got)
	}
}

func request(remote, host string, unix bool) *http.Request {
	ctx := context.Background()
	if unix {
		ctx = context.WithValue(ctx, http.LocalAddrContextKey, &net.UnixAddr{Name: "/s", Net: "unix"})
	}
	r := &http.Request{Method: "GET", URL: &url.URL{Path: "/"}, Header: http.Header{}, Host: host, RemoteAddr: remote}
	return r.WithContext(ctx)
}

func TestUnixSocketIsATrustedProxy(t *testing.T) {
	t.Parallel()
	s := serveUnix(t, closed())
	r := s.send("GET /?ticket="+s.ticket(), "X-Forwarded-Prefix: /sandbox/a")
	if !strings.Contains(r.header.Get("Set-Cookie"), "Path=/sandbox/a;") {
		t.Errorf("got headers %v, want a cookie for the prefix", r.header)
	}
	if r := s.send("GET /"); r.status != 401 {
		t.Errorf("Unix socket without credentials: got status %d, want 401", r.status)
	}
}

func TestCheckListen(t *testing.T) {
	t.Parallel()
	tests := []struct {
		listen  string
		private bool // only this machine can reach it
	}{
		{"127.0.0.1:8080", true}, {"127.0.0.9:0", true}, {"[::1]:8080", true}, {"localhost:8080", true},
		{"Localhost:1", true}, {"unix:/run/s", true}, {"[::ffff:127.0.0.1]:1", true},
		{"0.0.0.0:8080", false}, {":8080", false}, {"[::]:8080", false}, {"192.0.2.1:80", false},
		{"example.com:80", false}, {"localhost.example:80", false}, {"8080", false}, {"", false},
	}
	for _, tt := range tests {
		err := CheckListen(tt.listen, Config{}, false)
		if (err == nil) != tt.private {
			t.Errorf("%q: got error %v, want none: %v", tt.listen, err, tt.private)
		}
		if err != nil {
			for _, name := range []string{"JWT_PUBLIC_KEY", "AUTH_TOKEN", "AIO_API_KEY", "--insecure"} {
				if !strings.Contains(err.Error(), name) {
					t.Errorf("%q: got error %v, want %s in it", tt.listen, err, name)
				}
			}
		}
		if err := CheckListen(tt.listen, Config{}, true); err != nil {
			t.Errorf("%q, insecure: got error %v, want none", tt.listen, err)
		}
		if err := CheckListen(tt.listen, Config{APIKey: theKey}, false); err != nil {
			t.Errorf("%q with a key: got error %v, want none", tt.listen, err)
		}
	}
	if err := CheckListen(":1", Config{Variables: []string{"HUB_TOKEN"}}, false); err == nil || !strings.Contains(err.Error(), "HUB_TOKEN") {
		t.Errorf("configured variables: got error %v, want HUB_TOKEN in it", err)
	}
}

func FuzzBase(f *testing.F) {
	f.Add("x.example:80", "https", "hub.example", "/a/b")
	f.Add("[::1]:8080", "HTTP", "[2001:db8::1]", "//x")
	f.Add("a b", "javascript", "u@h:p/..", "/a/../..;x=\"'<>")
	f.Fuzz(func(t *testing.T, host, proto, fhost, prefix string) {
		r := request("127.0.0.1:1", host, false)
		r.Header = http.Header{"X-Forwarded-Proto": {proto}, "X-Forwarded-Host": {fhost}, "X-Forwarded-Prefix": {prefix}}
		u := Base(r, nil)
		again, err := url.Parse(u.String())
		if err != nil || again.Scheme != u.Scheme || again.Host != u.Host || again.Path != u.Path ||
			again.User != nil || again.RawQuery != "" || again.Fragment != "" {
			t.Fatalf("%q: got %v and error %v when parsed, want the same", u, again, err)
		}
		if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || strings.ContainsAny(u.String(), " \"'<>\\;,\r\n\t") {
			t.Fatalf("got %q, want a clean URL", u)
		}
		if u.Path != "" && (path.Clean(u.Path) != u.Path || u.Path[0] != '/' || u.Path == "/") {
			t.Fatalf("got prefix %q, want a clean one", u.Path)
		}
	})
}

// Only credentials that this guard signed are accepted.
func FuzzCredentials(f *testing.F) {
	g := New(Config{JWTPublicKey: &signer().PublicKey, Token: theToken, APIKey: theKey})
	other := New(Config{Token: theToken})
	f.Add("Bearer "+goodJWT(f)+"x", "a=b; "+CookiePrefix+"x="+other.cookies.seal(Identity{Subject: "alice"},
		session{end: time.Now().Add(time.Hour)}), "ticket=tkt_x&a", "k")
	f.Add("bearer eyJhbGciOiJub25lIn0.e30.", "=;=;", "%74icket=%", "")
	f.Add("Bearer a.b.c", "x", "&&ticket", "")
	name := CookiePrefix + "x"
	f.Fuzz(func(t *testing.T, authorization, cookie, query, key string) {
		if _, problem := g.keys.bearer(authorization); problem == "" && !strings.HasSuffix(authorization, theToken) {
			if subject, _ := g.keys.verify(authorization[strings.LastIndexByte(authorization, ' ')+1:]); subject != "alice" {
				t.Fatalf("%q: got accepted, want rejected", authorization)
			}
		}
		if equalsSecret(g.keys.apiKey, key) != (key == theKey) {
			t.Fatalf("key %q: got the opposite, want equal: %v", key, key == theKey)
		}
		h := http.Header{"Cookie": {cookie}}
		for _, s := range allSessions(h, name) {
			if _, _, ok := g.cookies.open(s); ok {
				t.Fatalf("cookie %q: got accepted, want rejected", s)
			}
		}
		for _, line := range h["Cookie"] {
			for part := range strings.SplitSeq(line, ";") {
				if strings.HasPrefix(strings.TrimSpace(part), CookiePrefix) {
					t.Fatalf("got %q, want no session in it", line)
				}
			}
		}
		r := request("127.0.0.1:1", "x", false)
		r.URL.RawQuery = query
		for _, ticket := range takeTickets(r) {
			if _, ok := g.tickets.use(ticket); ok {
				t.Fatalf("ticket %q: got accepted, want rejected", ticket)
			}
		}
		if again := takeTickets(r); again != nil {
			t.Fatalf("got query %q, want no ticket in it", r.URL.RawQuery)
		}
	})
}

func allSessions(h http.Header, name string) []string {
	links, sessions := takeSessions(h, name)
	return append(links, sessions...)
}
