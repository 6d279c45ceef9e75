package egress

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

func TestMain(m *testing.M) { testenv.Main(m) }

var (
	loopback = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	open     = sandbox.Network{Mode: sandbox.NetworkOpen}
)

// rig is a proxy on a socket, with a resolver for tests.
type rig struct {
	*Proxy
	path string

	mu    sync.Mutex
	names map[string][]string // of each lookup, in order; the last one repeats
	dials []string
}

func newRig(t *testing.T, cfg Config) *rig {
	t.Helper()
	r := &rig{names: map[string][]string{}, path: filepath.Join(t.TempDir(), "egress.sock")}
	cfg.Resolve = r.resolve
	inner := cfg.Dial
	cfg.Dial = func(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
		r.mu.Lock()
		r.dials = append(r.dials, to.String())
		r.mu.Unlock()
		if inner != nil {
			return inner(ctx, to)
		}
		var d net.Dialer
		return d.DialContext(ctx, "tcp", to.String())
	}
	if cfg.Self == nil {
		cfg.Self = func() []netip.Addr { return nil }
	}
	p, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	r.Proxy = p
	l, err := net.Listen("unix", r.path)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- p.Serve(l) }()
	t.Cleanup(func() {
		p.Close()
		if err := <-served; !errors.Is(err, net.ErrClosed) {
			t.Errorf("serve ended with %v, want net.ErrClosed", err)
		}
	})
	return r
}

func (r *rig) resolve(_ context.Context, name string) ([]netip.Addr, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	answers := r.names[name]
	if len(answers) == 0 {
		return nil, &net.DNSError{Err: "no such host", Name: name, IsNotFound: true}
	}
	if len(answers) > 1 {
		r.names[name] = answers[1:]
	}
	var out []netip.Addr
	for s := range strings.FieldsSeq(answers[0]) {
		out = append(out, netip.MustParseAddr(s))
	}
	return out, nil
}

func (r *rig) dialed() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.dials)
}

// client is a program in the sandbox that uses the proxy.
func (r *rig) client(t *testing.T, scheme string) *http.Client {
	tr := &http.Transport{
		Proxy: http.ProxyURL(&url.URL{Scheme: scheme, Host: "way.out:1"}),
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", r.path)
		},
		TLSClientConfig: tlsAny(),
	}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

func get(t *testing.T, c *http.Client, url string) (int, string, error) {
	t.Helper()
	res, err := c.Get(url)
	if err != nil {
		return 0, "", err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return res.StatusCode, string(b), err
}

func port(t *testing.T, rawURL string) string {
	t.Helper()
	u, err := url.Parse(rawURL)
	if err != nil {
		t.Fatal(err)
	}
	return u.Port()
}

// answer is a server outside that returns the request.
func answer(t *testing.T, tls bool) *httptest.Server {
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %s host=%s body=%s for=%q via=%q conn=%q auth=%q", r.Method, r.URL.RequestURI(), r.Host, b,
			r.Header.Get("X-Forwarded-For"), r.Header.Get("Via"), r.Header.Get("Proxy-Connection"), r.Header.Get("Proxy-Authorization"))
	})
	s := httptest.NewUnstartedServer(h)
	if tls {
		s.StartTLS()
	} else {
		s.Start()
	}
	t.Cleanup(s.Close)
	return s
}

func TestEveryProtocolPasses(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{Network: open, Private: loopback})
	r.names["out.test"] = []string{"127.0.0.1"}
	plain, secure := answer(t, false), answer(t, true)
	for _, c := range []struct{ scheme, url string }{
		{"http", "http://out.test:" + port(t, plain.URL) + "/a%2Fb?x=1;y&z"},
		{"http", "https://out.test:" + port(t, secure.URL) + "/a%2Fb?x=1;y&z"},
		{"socks5h", "http://OUT.test.:" + port(t, plain.URL) + "/a%2Fb?x=1;y&z"},
		{"socks5h", "https://127.0.0.1:" + port(t, secure.URL) + "/a%2Fb?x=1;y&z"},
	} {
		status, body, err := get(t, r.client(t, c.scheme), c.url)
		if err != nil || status != 200 || !strings.HasPrefix(body, "GET /a%2Fb?x=1;y&z host=") ||
			!strings.HasSuffix(body, ` body= for="" via="" conn="" auth=""`) {
			t.Errorf("%s %s: %d %q %v, want status 200, beginning with \"GET /a%%2Fb?x=1;y&z host=\", ending in %q",
				c.scheme, c.url, status, body, err, ` body= for="" via="" conn="" auth=""`)
		}
	}
	testenv.Poll(t, "all records end", func() bool {
		list := r.Records()
		return len(list) == 4 && list[0].Ended
	})
	protocols := map[string]int{}
	for _, rec := range r.Records() {
		protocols[rec.Protocol]++
		if rec.Verdict != Allowed || rec.Address != "127.0.0.1" || rec.Port == 0 {
			t.Errorf(`%+v, want verdict %q, address "127.0.0.1" and a port`, rec, Allowed)
		}
	}
	if protocols["http"] != 1 || protocols["connect"] != 1 || protocols["socks5"] != 2 {
		t.Errorf("got %v, want http 1, connect 1, socks5 2", protocols)
	}
	if rec := r.Records()[0]; rec.Down == 0 || rec.Host != "out.test" {
		t.Errorf(`%+v, want received bytes and host "out.test"`, rec)
	}
}

func TestRefusalsContainTheReason(t *testing.T) {
	t.Parallel()
	var seen []Record
	var mu sync.Mutex
	self := netip.MustParseAddr("93.184.216.34")
	r := newRig(t, Config{Network: open, Self: func() []netip.Addr { return []netip.Addr{self} },
		Observe: func(rec Record) { mu.Lock(); seen = append(seen, rec); mu.Unlock() }})
	r.names["inside.test"] = []string{"127.0.0.1"}
	r.names["meta.test"] = []string{"::ffff:169.254.169.254 fd00:ec2::254"}
	r.names["me.test"] = []string{"93.184.216.34"}
	for target, want := range map[string]string{
		"127.0.0.1":       "not a public address",
		"[::1]":           "not a public address",
		"169.254.169.254": "not a public address",
		"10.0.0.1":        "not a public address; the operator of the hub can allow it with --private-networks 10.0.0.1/32",
		"inside.test":     "resolves to an address that sandboxes must not reach",
		"meta.test":       "resolves to an address that sandboxes must not reach",
		"me.test":         "an address of the machine",
		"127.1":           "ends in a number",
		"0x7f.0.0.0x1":    "ends in a number",
		"2130706433":      "ends in a number",
		"gone.test":       "no such host",
		"localhost":       "no such host",
	} {
		status, body, err := get(t, r.client(t, "http"), "http://"+target+":80/")
		wantStatus := 403
		if strings.Contains(want, "no such host") {
			wantStatus = 502
		}
		if err != nil || status != wantStatus || !strings.Contains(body, want) {
			t.Errorf("%s: %d %q %v, want status %v, containing %q", target, status, body, err, wantStatus, want)
		}
		for _, c := range []struct{ scheme, url string }{{"http", "https://" + target + "/"}, {"socks5h", "http://" + target + "/"}} {
			if _, _, err := get(t, r.client(t, c.scheme), c.url); err == nil {
				t.Errorf("%s over %s was reached, want an error", target, c.scheme)
			}
		}
	}
	if d := r.dialed(); len(d) != 0 {
		t.Errorf("dialed %v, want no d", d)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(seen) != 36 {
		t.Errorf("%d decisions were observed, want 36", len(seen))
	}
	for _, rec := range seen {
		if rec.Verdict == Allowed || rec.Reason == "" || !rec.Ended {
			t.Errorf("%+v, want verdict other than %q, a reason and ended", rec, Allowed)
		}
	}
}

// TestNameCannotChangeBetweenCheckAndDial is DNS rebinding: the second response
// is an address of this machine.
func TestNameCannotChangeBetweenCheckAndDial(t *testing.T) {
	t.Parallel()
	down := errors.New("no server")
	r := newRig(t, Config{Network: open, Dial: func(context.Context, netip.AddrPort) (net.Conn, error) { return nil, down }})
	r.names["rebind.test"] = []string{"93.184.216.34 127.0.0.1 1.1.1.1", "127.0.0.1"}
	for range 3 {
		get(t, r.client(t, "http"), "http://rebind.test/")
	}
	if d := r.dialed(); !slices.Equal(d, []string{"93.184.216.34:80", "1.1.1.1:80"}) {
		t.Errorf("dialed %v, want d %v", d, []string{"93.184.216.34:80", "1.1.1.1:80"})
	}
}

// TestRulesOfASandboxCannotOpenThisMachine: only the operator can.
func TestRulesOfASandboxCannotOpenThisMachine(t *testing.T) {
	t.Parallel()
	out := answer(t, false)
	all := sandbox.Network{Mode: sandbox.NetworkAllow, Allow: []string{"127.0.0.0/8", "0.0.0.0/0", "::/0", "*", "out.test"}}
	r := newRig(t, Config{Network: all})
	r.names["out.test"] = []string{"127.0.0.1"}
	for _, host := range []string{"127.0.0.1", "out.test"} {
		if status, body, err := get(t, r.client(t, "http"), "http://"+host+":"+port(t, out.URL)); err != nil || status != 403 {
			t.Errorf("%s: %d %q %v, want status 403", host, status, body, err)
		}
	}
}

func TestRulesChangeAtRunTime(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{Network: open, Private: loopback})
	r.names["a.test"], r.names["b.test"] = []string{"127.0.0.1"}, []string{"127.0.0.1"}
	echo := echoServer(t)
	out := answer(t, false)
	client := r.client(t, "http")
	unseen := r.tunnel(t, "b.test:"+echo)
	fmt.Fprint(unseen.Conn, "x")
	if b, err := unseen.ReadByte(); b != 'x' {
		t.Fatalf("got %q, %v, want x", b, err)
	}
	if err := r.Set(sandbox.Network{Mode: sandbox.NetworkAllow, Allow: []string{"a.test", "b.test:" + echo}}); err != nil {
		t.Fatal(err)
	}
	if _, err := unseen.ReadByte(); err == nil {
		t.Error("an uninspected tunnel is still open after the change to a list of names")
	}
	a, b := r.tunnel(t, "a.test:"+echo), r.tunnel(t, "b.test:"+echo)
	plain := "http://a.test:" + port(t, out.URL)
	if status, _, err := get(t, client, plain); status != 200 {
		t.Fatalf("got %d, %v, want 200", status, err)
	}
	if err := r.Set(sandbox.Network{Mode: sandbox.NetworkAllow, Allow: []string{"b.test:" + echo}}); err != nil {
		t.Fatal(err)
	}
	if _, err := a.ReadByte(); err == nil {
		t.Error("a tunnel is still open after its rule was removed")
	}
	fmt.Fprint(b, "still here\n")
	b.Flush()
	if line, err := b.ReadString('\n'); line != "still here\n" {
		t.Errorf("got %q, %v, want \"still here\"", line, err)
	}
	// The connection to the outside may still be there, but is not used again.
	if status, body, err := get(t, client, plain); status != 403 || !strings.Contains(body, "none of its 1 rules matches") {
		t.Errorf("got %v, %q, %v, want status 403, containing \"not on this sandbox's list\"", status, body, err)
	}
	if err := r.Set(sandbox.Network{Mode: "x"}); err == nil {
		t.Error("bad rules were accepted")
	}
	if err := r.Set(open); err != nil {
		t.Fatal(err)
	}
	if status, _, err := get(t, client, plain); status != 200 {
		t.Errorf("got %d, %v, want 200", status, err)
	}
}

// echoServer returns its input and, after the end of the input, a last line.
func echoServer(t *testing.T) (port string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var work sync.WaitGroup
	work.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			work.Go(func() {
				defer c.Close()
				io.Copy(c, c)
				io.WriteString(c, "bye")
			})
		}
	})
	t.Cleanup(func() { l.Close(); work.Wait() })
	_, port, _ = net.SplitHostPort(l.Addr().String())
	return port
}

type pipe struct {
	*bufio.ReadWriter
	net.Conn
}

func (t pipe) Read(b []byte) (int, error)  { return t.ReadWriter.Read(b) }
func (t pipe) Write(b []byte) (int, error) { return t.ReadWriter.Write(b) }

func (r *rig) tunnel(t *testing.T, to string) pipe {
	t.Helper()
	c, err := net.Dial("unix", r.path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	rw := bufio.NewReadWriter(bufio.NewReader(c), bufio.NewWriter(c))
	fmt.Fprintf(rw, "CONNECT %s HTTP/1.1\r\nHost: x\r\n\r\n", to)
	rw.Flush()
	res, err := http.ReadResponse(rw.Reader, &http.Request{Method: http.MethodConnect})
	if err != nil || res.StatusCode != 200 {
		t.Fatalf("got %v, %v, want 200", res, err)
	}
	return pipe{rw, c}
}

func TestHalfClose(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{Network: open, Private: loopback})
	echo := echoServer(t)
	c := r.tunnel(t, "127.0.0.1:"+echo)
	fmt.Fprint(c, "hello ")
	c.Flush()
	c.Conn.(*net.UnixConn).CloseWrite()
	if b, err := io.ReadAll(c.Reader); string(b) != "hello bye" {
		t.Errorf("%q %v, want \"hello bye\"", b, err)
	}
	testenv.Poll(t, "the record ends", func() bool { return r.Records()[0].Ended })
	if rec := r.Records()[0]; rec.Up != 6 || rec.Down != 9 {
		t.Errorf("%+v, want Up 6, Down 9", rec)
	}
}

func TestNotAProxyRequest(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{Network: open})
	for request, want := range map[string]string{
		"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n":                      "400 Bad Request",
		"GET https://x/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n":             "400 Bad Request",
		"GET ftp://x/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n":               "400 Bad Request",
		"CONNECT x HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n":                  "403 Forbidden",
		"CONNECT x:99999 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n":            "403 Forbidden",
		"GET http://a:x/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n":            "400 Bad Request",
		"GET http://fe80::1%25lo/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n":   "400 Bad Request",
		"GET http://[fe80::1%25lo]/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n": "403 Forbidden",
	} {
		c, err := net.Dial("unix", r.path)
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(c, request)
		b, err := io.ReadAll(c)
		c.Close()
		if err != nil || !strings.Contains(string(b), want) {
			t.Errorf("%q: %q %v, want containing %q", request, b, err, want)
		}
	}
}

func TestTooManyConnections(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{Network: open, Private: loopback, MaxConns: 2})
	echo := echoServer(t)
	first := r.tunnel(t, "127.0.0.1:"+echo)
	r.tunnel(t, "127.0.0.1:"+echo)
	c, err := net.Dial("unix", r.path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Read(make([]byte, 1)); err == nil {
		t.Error("a third connection was accepted")
	}
	first.Conn.Close()
	testenv.Poll(t, "there is room again", func() bool {
		c, err := net.Dial("unix", r.path)
		if err != nil {
			return false
		}
		defer c.Close()
		fmt.Fprintf(c, "CONNECT 127.0.0.1:%s HTTP/1.1\r\nHost: x\r\n\r\n", echo)
		_, err = c.Read(make([]byte, 1))
		return err == nil
	})
}

func TestRecordsAreBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{Network: sandbox.Network{}, Keep: 3})
	client := r.client(t, "http")
	for i := range 5 {
		get(t, client, fmt.Sprintf("http://host%d.test/", i))
	}
	var hosts []string
	for _, rec := range r.Records() {
		hosts = append(hosts, rec.Host)
	}
	if !slices.Equal(hosts, []string{"host2.test", "host3.test", "host4.test"}) {
		t.Errorf("got %v, want host2.test, host3.test, host4.test", hosts)
	}
}

func TestCloseEndsTunnels(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{Network: open, Private: loopback})
	c := r.tunnel(t, "127.0.0.1:"+echoServer(t))
	var wait sync.WaitGroup
	for range 3 {
		wait.Go(func() { r.Close() })
	}
	wait.Wait()
	if _, err := c.ReadByte(); err == nil {
		t.Error("a tunnel is still open after the proxy was closed")
	}
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Serve(l); !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
}
