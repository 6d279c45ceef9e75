package egress

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/internal/network/certificate"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

func TestOnlyTheNamedHostGetsTheValue(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, scheme := range []string{"http", "socks5h"} {
		for _, c := range []struct {
			url   string
			trust *certificate.Authority // the issuer of the certificate identifies the end of the handshake
			want  bool
		}{
			{"https://named.test:" + w.secure + "/a%2Fb?x=1;y", w.ours, true},
			{"https://NAMED.test.:" + w.secure + "/", w.ours, true},
			{"https://other.test:" + w.secure + "/", w.real, false},
			{"https://sub.named.test:" + w.secure + "/", w.real, false},
			{"https://notnamed.test:" + w.secure + "/", w.real, false},
			{"http://named.test:" + w.plain + "/", w.ours, true},
			{"http://NAMED.test.:" + w.plain + "/", w.ours, true},
			{"http://other.test:" + w.plain + "/", w.ours, false},
			{"http://127.0.0.1:" + w.plain + "/", w.ours, false},
		} {
			before := len(w.requests())
			status, body, err := get(t, w.trusting(t, scheme, c.trust), c.url)
			if err != nil || status != 200 || body != "fine" {
				t.Errorf("%s %s: %d %q %v, want status 200, \"fine\"", scheme, c.url, status, body, err)
				continue
			}
			r := w.requests()[before]
			if got := slices.Equal(r.auth, []string{token}); got != c.want || !got && len(r.auth) > 0 {
				t.Errorf("%s %s carried %q, want the credential: %v", scheme, c.url, r.auth, c.want)
			}
		}
	}
}

func TestAttacksInATunnel(t *testing.T) {
	t.Parallel()
	const end = "Connection: close\r\n\r\n"
	for what, c := range map[string]struct {
		send string // $ is replaced by host and port
		want []int
		get  int // requests that reach the host
	}{
		"as it should be":      {"GET / HTTP/1.1\r\nHost: $\r\n" + end, []int{200}, 1},
		"other host":           {"GET / HTTP/1.1\r\nHost: other.test\r\n\r\n", []int{421}, 0},
		"other port":           {"GET / HTTP/1.1\r\nHost: named.test:1\r\n\r\n", []int{421}, 0},
		"no port":              {"GET / HTTP/1.1\r\nHost: named.test\r\n" + end, []int{200}, 1},
		"case and dot":         {"GET / HTTP/1.1\r\nHost: NAMED.Test.\r\n" + end, []int{200}, 1},
		"address":              {"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", []int{421}, 0},
		"no host":              {"GET / HTTP/1.0\r\n\r\n", []int{421}, 0},
		"two hosts":            {"GET / HTTP/1.1\r\nHost: $\r\nHost: other.test\r\n\r\n", []int{400}, 0},
		"host in host":         {"GET / HTTP/1.1\r\nHost: other.test@$\r\n\r\n", []int{400}, 0},
		"absolute":             {"GET https://$/ HTTP/1.1\r\nHost: other.test\r\n" + end, []int{200}, 1},
		"absolute other":       {"GET https://other.test/ HTTP/1.1\r\nHost: $\r\n\r\n", []int{421}, 0},
		"absolute with user":   {"GET https://u:p@$/ HTTP/1.1\r\nHost: $\r\n" + end, []int{200}, 1},
		"absolute in the open": {"GET http://$/ HTTP/1.1\r\nHost: $\r\n\r\n", []int{421}, 0},
		"switches host":        {"GET / HTTP/1.1\r\nHost: $\r\n\r\nGET / HTTP/1.1\r\nHost: other.test\r\n\r\n", []int{200, 421}, 1},
		"two lengths":          {"POST / HTTP/1.1\r\nHost: $\r\nContent-Length: 4\r\nContent-Length: 40\r\n\r\nabcd", []int{400}, 0},
		"length twice":         {"POST / HTTP/1.1\r\nHost: $\r\nContent-Length: 4\r\nContent-Length: 4\r\n" + end + "abcd", []int{200}, 1},
		"length with sign":     {"POST / HTTP/1.1\r\nHost: $\r\nContent-Length: +4\r\n\r\nabcd", []int{400}, 0},
		"length and chunks": {"POST / HTTP/1.1\r\nHost: $\r\nContent-Length: " +
			"60\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /hid HTTP/1.1\r\nHost: other.test\r\n\r\n", []int{200, 421}, 1},
		"chunks spelled oddly": {"POST / HTTP/1.1\r\nHost: $\r\nContent-Length: 4\r\nTransfer-Encoding: " +
			"xchunked\r\n\r\nabcd", []int{501}, 0},
		"chunks twice": {"POST / HTTP/1.1\r\nHost: $\r\nTransfer-Encoding: " +
			"chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n", []int{501}, 0},
		"chunks with space": {"POST / HTTP/1.1\r\nHost: $\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n", []int{400}, 0},
		"folded":            {"GET / HTTP/1.1\r\nHost: $\r\nX: a\r\n Authorization: mine\r\n" + end, []int{200}, 1},
		"bare line feeds":   {"GET / HTTP/1.1\nHost: $\nConnection: close\n\n", []int{200}, 1},
		"own header": {"GET / HTTP/1.1\r\nHost: $\r\naUTHORIZATION: mine\r\nAuthorization: " +
			"mine\r\nX_Api_Key: mine\r\nx-api-key: mine\r\n" + end, []int{200}, 1},
		"own header as the hop's": {"GET / HTTP/1.1\r\nHost: $\r\nConnection: close, authorization, x-api-key\r\n\r\n", []int{200}, 1},
		"own header in trailer": {"POST / HTTP/1.1\r\nHost: $\r\nTransfer-Encoding: chunked\r\nTrailer: " +
			"Authorization, X-Api-Key\r\n" + end + "1\r\na\r\n0\r\nAuthorization: mine\r\n\r\n", []int{200}, 1},
		"trace":            {"TRACE / HTTP/1.1\r\nHost: $\r\n" + end, []int{405}, 0},
		"tunnel in tunnel": {"CONNECT $ HTTP/1.1\r\nHost: $\r\n\r\n", []int{421}, 0},
		"other language":   {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", []int{421}, 0},
		"upgrade to another language": {"GET / HTTP/1.1\r\nHost: $\r\nUpgrade: h2c\r\nHTTP2-Settings: " +
			"AAMAAABkAAQAAP__\r\nConnection: Upgrade, HTTP2-Settings\r\n\r\nGET / HTTP/1.1\r\nHost: other.test\r\n\r\n", []int{200, 421}, 1},
		"proxy request in the tunnel": {"GET https://$/ HTTP/1.1\r\nHost: $\r\nProxy-Authorization: " +
			"x\r\nForwarded: host=other.test\r\nX-Forwarded-Host: other.test\r\n" + end, []int{200}, 1},
		"host that a header seems to end": {"GET / HTTP/1.1\r\nHost: $\x00other.test\r\n\r\n", []int{400}, 0},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			named := "named.test:" + w.secure
			send := strings.ReplaceAll(c.send, "$", named)
			got, text := w.dialogue(t, named, &tls.Config{RootCAs: w.ours.Pool(), ServerName: "named.test"}, send)
			if !slices.Equal(got, c.want) {
				t.Errorf("answers %v %q, want %v", got, text, c.want)
			}
			list := w.requests()
			if len(list) != c.get {
				t.Errorf("%d requests reached the host, want %d", len(list), c.get)
			}
			for _, r := range list {
				if r.host != named || !slices.Equal(r.auth, []string{token}) ||
					!slices.Equal(r.header.Values("X-Api-Key"), []string{"key-5f1c9e77a0"}) ||
					strings.Contains(fmt.Sprint(r.header, r.trailer), "mine") && what != "folded" {
					t.Errorf("%s: the host saw %+v, want host %q with both credentials and nothing of the sandbox's own", what, r, named)
				}
			}
		})
	}
}

func TestAttacksOverPlainHTTP(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	// $ is the port. Every request except the last keeps the connection.
	requests := []struct {
		line, headers string
		host          string
		want          bool
	}{
		{"GET http://other.test:$/ HTTP/1.1", "Host: named.test:$\r\n", "other.test:$", false},
		{"GET http://named.test:$/ HTTP/1.1", "Host: other.test\r\nauthorization: mine\r\nConnection: authorization\r\n", "named.test:$", true},
		{"GET http://127.0.0.1:$/ HTTP/1.1", "Host: named.test:$\r\n", "127.0.0.1:$", false},
		{"GET http://named.test@other.test:$/ HTTP/1.1", "Host: named.test:$\r\n", "other.test:$", false},
		{"GET http://other.test@named.test:$/ HTTP/1.1", "Host: other.test\r\n", "named.test:$", true},
		{"GET http://NAMED.test.:$/ HTTP/1.1", "Host: x\r\n", "named.test:$", true},
		{"GET http://sub.named.test:$/ HTTP/1.1", "Host: named.test:$\r\nX-Forwarded-Host: named.test\r\n", "sub.named.test:$", false},
		{"POST http://named.test:$/ HTTP/1.1", "Host: x\r\nContent-Length: 70\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", "named.test:$", true},
		{"GET http://other.test:$/ HTTP/1.1", "Host: named.test:$\r\nConnection: close\r\n", "other.test:$", false},
	}
	var send strings.Builder
	for _, r := range requests {
		fmt.Fprintf(&send, "%s\r\n%s\r\n", r.line, r.headers)
	}
	c, err := net.Dial("unix", w.path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	io.WriteString(c, strings.ReplaceAll(send.String(), "$", w.plain))
	all, err := io.ReadAll(c)
	if n := strings.Count(string(all), "HTTP/1.1 200 OK"); err != nil || n != len(requests) {
		t.Fatalf("%d answers: %q %v, want %v", n, all, err, len(requests))
	}
	for i, got := range w.requests() {
		want := requests[i]
		if got.host != strings.ReplaceAll(want.host, "$", w.plain) ||
			slices.Equal(got.auth, []string{token}) != want.want || strings.Contains(fmt.Sprint(got.header), "mine") {
			t.Errorf("%s: the host saw %+v", want.line, got)
		}
	}
	if got, text := w.raw(t, "TRACE http://named.test:"+w.plain+"/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"); got != 405 {
		t.Errorf("got %v, %q, want 405", got, text)
	}
}

// TestOnlyTheConnectedHostCounts: the sandbox chooses the name in the handshake and the Host
// header, but only the host of the connection gets the value.
func TestOnlyTheConnectedHostCounts(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	second := httptest.NewUnstartedServer(http.HandlerFunc(w.serve))
	second.TLS = &tls.Config{GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
		return w.real.Certificate(hello.ServerName)
	}}
	second.StartTLS()
	t.Cleanup(second.Close)
	ask := "GET / HTTP/1.1\r\nHost: named.test:" + w.secure + "\r\nConnection: close\r\n\r\n"
	for what, c := range map[string]struct {
		to, sni string
		trust   *certificate.Authority
		want    []int
	}{
		"another host, named in the handshake": {"other.test:" + w.secure, "named.test", w.real, []int{200}},
		"an address, named in the handshake":   {"127.0.0.1:" + w.secure, "named.test", w.real, []int{200}},
		"another port":                         {"named.test:" + port(t, second.URL), "named.test", w.real, []int{200}},
		"another in the handshake":             {"named.test:" + w.secure, "other.test", nil, nil},
		"below the name":                       {"sub.named.test:" + w.secure, "named.test", w.real, []int{200}},
	} {
		before := len(w.requests())
		cfg := &tls.Config{ServerName: c.sni, InsecureSkipVerify: c.trust == nil}
		if c.trust != nil {
			cfg.RootCAs = c.trust.Pool()
		}
		got, text := w.dialogue(t, c.to, cfg, ask)
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %v %s, want %v", what, got, text, c.want)
		}
		for _, r := range w.requests()[before:] {
			if len(r.auth) != 0 {
				t.Errorf("%s: carried %q, want no auth", what, r.auth)
			}
		}
	}
	// Without a name in the handshake, the connection's own counts.
	anon := &tls.Config{InsecureSkipVerify: true}
	if got, text := w.dialogue(t, "named.test:"+w.secure, anon, ask); !slices.Equal(got, []int{200}) {
		t.Errorf("got %v, %q, want %v", got, text, []int{200})
	}
}

func TestNothingIsAddedWithoutVerifiedTLS(t *testing.T) {
	t.Parallel()
	url := func(w *world) string { return "https://named.test:" + w.secure + "/" }
	t.Run("certificate of an unknown authority", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, func(c *Config) { c.Roots = x509.NewCertPool() })
		status, body, err := get(t, w.trusting(t, "http", w.ours), url(w))
		if err != nil || status != 502 || !strings.Contains(body, "certificate") {
			t.Errorf("got %v, %q, %v, want status 502, containing \"certificate\"", status, body, err)
		}
		if n := len(w.requests()); n != 0 {
			t.Error("the host received a request")
		}
	})
	t.Run("denied address", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, func(c *Config) { c.Private = nil })
		for _, scheme := range []string{"http", "socks5h"} {
			if _, _, err := get(t, w.trusting(t, scheme, w.ours), url(w)); err == nil {
				t.Error("it was reached")
			}
		}
		if status, body, err := get(t, w.client(t, "http"), "http://named.test:"+w.plain+"/"); status != 403 {
			t.Errorf("got %v, %q, %v, want status 403", status, body, err)
		}
		if d := w.dialed(); len(d) != 0 {
			t.Errorf("dialed %v, want no d", d)
		}
	})
	t.Run("denied host", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, func(c *Config) {
			c.Network = sandbox.Network{Mode: sandbox.NetworkAllow, Allow: []string{"other.test"}}
		})
		if _, _, err := get(t, w.trusting(t, "http", w.ours), url(w)); err == nil || !strings.Contains(err.Error(), "Forbidden") {
			t.Error(err)
		}
	})
	t.Run("plain without leave", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		list := w.credentials()
		list[2].Insecure = false
		if err := w.SetCredentials(list); err != nil {
			t.Fatal(err)
		}
		for _, scheme := range []string{"http", "socks5h"} {
			status, body, err := get(t, w.client(t, scheme), "http://named.test:"+w.plain+"/")
			if err != nil || status != 200 {
				t.Errorf("got %v, %q, %v, want status 200", status, body, err)
			}
		}
		for _, r := range w.requests() {
			if len(r.auth) != 0 {
				t.Errorf("carried %q, want no auth", r.auth)
			}
		}
	})
}

// TestDefaultPorts: a host without a port means 443, and 80 only if Insecure is set.
func TestDefaultPorts(t *testing.T) {
	t.Parallel()
	var w *world
	w = newWorld(t, func(c *Config) {
		c.Credentials = []Credential{
			{Host: "named.test", Header: "Authorization", Value: hidden(token)},
			{Host: "other.test", Header: "Authorization", Value: hidden("open"), Insecure: true},
		}
		c.Dial = func(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
			target := map[uint16]string{443: w.secure, 8443: w.secure, 80: w.plain}[to.Port()]
			var d net.Dialer
			return d.DialContext(ctx, "tcp", "127.0.0.1:"+target)
		}
	})
	for url, want := range map[string]string{
		"https://named.test/":      token,
		"https://named.test:8443/": "",
		"http://named.test/":       "",
		"https://other.test/":      "open",
		"http://other.test/":       "open",
	} {
		before := len(w.requests())
		status, body, err := get(t, w.trusting(t, "http", w.ours, w.real), url)
		if err != nil || status != 200 {
			t.Errorf("%s: %d %q %v, want status 200", url, status, body, err)
			continue
		}
		r := w.requests()[before]
		if strings.Join(r.auth, "|") != want || strings.ContainsAny(r.host, ":") != strings.Contains(url, "8443") {
			t.Errorf("%s: %+v, want credentials %q", url, r, want)
		}
	}
	w.mu.Lock()
	w.seen = nil // the host goes without its port here, which the last check does not know
	w.mu.Unlock()
}
