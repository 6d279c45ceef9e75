package proxy

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/network/egress"
	"github.com/cove-sandbox/cove/internal/network/relay"
	"github.com/cove-sandbox/cove/internal/network/socks"
	"github.com/cove-sandbox/cove/internal/sandbox"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// rig is a proxy behind its relay.
type rig struct {
	*Service
	relay *relay.Relay
	state string
}

func newRig(t *testing.T, c Config) *rig {
	t.Helper()
	loopback, err := relay.New(relay.Config{Always: true, Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	if err := loopback.Open(); err != nil {
		t.Fatal(err)
	}
	c.State = t.TempDir()
	c.Address, c.Environ = loopback.Address, loopback.Env
	c.Runner = proc.New(proc.Config{Env: []string{"PATH=" + os.Getenv("PATH"), "HOME=" + c.State}})
	s := New(c)
	if err := s.CheckConfig(); err != nil {
		t.Fatal(err)
	}
	loopback.Handle(s.ServeConn)
	t.Cleanup(func() {
		s.Close()
		s.Close()
		loopback.Close()
		c.Runner.Close()
	})
	return &rig{s, loopback, c.State}
}

// connect opens a connection to the proxy, which ends with the test.
func (r *rig) connect(t *testing.T) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", r.relay.Address())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// client returns an HTTP client that uses the proxy and trusts the given authorities.
func (r *rig) client(t *testing.T, trust ...[]byte) *http.Client {
	t.Helper()
	via, err := url.Parse(r.relay.URL())
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	for _, pem := range trust {
		pool.AppendCertsFromPEM(pem)
	}
	transport := &http.Transport{Proxy: http.ProxyURL(via), TLSClientConfig: &tls.Config{RootCAs: pool}}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: time.Minute,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

func (r *rig) authority(t *testing.T) []byte {
	t.Helper()
	ca, err := r.ca()
	if err != nil {
		t.Fatal(err)
	}
	return ca.PEM()
}

func get(t *testing.T, c *http.Client, url string) (int, string) {
	t.Helper()
	res, err := c.Get(url)
	if err != nil {
		return 0, err.Error()
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(b)
}

// service starts a server that responds with a name and the request.
func service(t *testing.T, name string) (port int, address string) {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s: %s %s host=%s proto=%s", name, r.Method, r.RequestURI, r.Host, r.Header.Get("X-Forwarded-Proto"))
	}))
	t.Cleanup(func() { s.CloseClientConnections(); s.Close() })
	address = s.Listener.Addr().String()
	return s.Listener.Addr().(*net.TCPAddr).Port, address
}

func (r *rig) mustMap(t *testing.T, source, target string) Mapping {
	t.Helper()
	m, err := r.AddMapping(t.Context(), MappingIn{source, target})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestMappings(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{})
	a, _ := service(t, "a")
	b, _ := service(t, "b")
	c := r.client(t, r.authority(t))
	m := r.mustMap(t, "https://api.example.com/v1", fmt.Sprintf("%d/base", a))
	if m.SourceHost != "api.example.com" || m.SourcePath != "/v1" ||
		strconv.Itoa(m.InternalPort) != strings.TrimPrefix(r.relay.Address(), "127.0.0.1:") {
		t.Errorf("got %+v, want host, path and port of the mapping", m)
	}
	r.mustMap(t, "*.example.com", fmt.Sprintf("127.0.0.1:%d", b))
	r.mustMap(t, "http://plain.example.org:8080/", fmt.Sprintf("localhost:%d/", a))
	for url, want := range map[string]string{
		"https://api.example.com/v1/users?q=%20": "a: GET /base/users?q=%20 host=api.example.com proto=https",
		"https://api.example.com/v1":             "a: GET /base host=api.example.com proto=https",
		"https://api.example.com/v1x":            "b: GET /v1x host=api.example.com proto=https",
		"http://api.example.com/v1/users":        "b: GET /v1/users host=api.example.com proto=http",
		"https://deep.sub.example.com/%2F..//x":  "b: GET /%2F..//x host=deep.sub.example.com proto=https",
		"http://API.Example.com/":                "b: GET / host=API.Example.com proto=http",
		"http://plain.example.org:8080/x":        "a: GET /x host=plain.example.org:8080 proto=http",
	} {
		if status, body := get(t, c, url); status != 200 || body != want {
			t.Errorf("%s: got %d %q, want %q", url, status, body, want)
		}
	}
	list, err := r.ListMappings(t.Context(), op.None{})
	if err != nil || len(list) != 3 {
		t.Errorf("got %+v and error %v, want three mappings", list, err)
	}
	r.mustMap(t, "*.example.com", strconv.Itoa(a)) // updates
	if _, body := get(t, c, "http://x.example.com/"); !strings.HasPrefix(body, "a:") {
		t.Errorf("updated: got %q, want service a without a restart", body)
	}
	if _, err := r.RemoveMapping(t.Context(), SourceIn{"*.example.com"}); err != nil {
		t.Error(err)
	}
	if status, body := get(t, c, "http://x.example.com.invalid/"); status == 200 {
		t.Errorf("removed: got %d %q, want an error", status, body)
	}
	if _, err := r.RemoveMapping(t.Context(), SourceIn{"*.example.com"}); err == nil {
		t.Error("removed twice: got no error, want one")
	}
	records, err := r.Log(t.Context(), LogIn{Limit: 500})
	if err != nil || !slices.ContainsFunc(records, func(rec Record) bool {
		return rec.Route == "mapping" && rec.Rule == "https://api.example.com/v1" && rec.Status == 200
	}) {
		t.Errorf("got %+v and error %v, want the mapped request in the log", records, err)
	}
}

func TestMappedWebSocketAndUpload(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.Header.Get("Upgrade") == "" {
			n, _ := io.Copy(io.Discard, req.Body)
			fmt.Fprint(w, n)
			return
		}
		w.Header().Set("Connection", "Upgrade")
		w.Header().Set("Upgrade", req.Header.Get("Upgrade"))
		w.WriteHeader(http.StatusSwitchingProtocols)
		conn, buf, _ := http.NewResponseController(w).Hijack()
		defer conn.Close()
		line, _ := buf.ReadString('\n')
		io.WriteString(conn, "echo "+line)
	}))
	defer s.Close()
	_, port, _ := net.SplitHostPort(s.Listener.Addr().String())
	r.mustMap(t, "live.example.com", port)
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(r.authority(t))
	raw, err := net.Dial("tcp", r.relay.Address())
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	fmt.Fprint(raw, "CONNECT live.example.com:443 HTTP/1.1\r\nHost: live.example.com:443\r\n\r\n")
	head := bufio.NewReader(raw)
	if res, err := http.ReadResponse(head, nil); err != nil || res.StatusCode != 200 {
		t.Fatalf("connect: %v %v", res, err)
	}
	c := tls.Client(raw, &tls.Config{ServerName: "live.example.com", RootCAs: pool})
	fmt.Fprint(c, "GET /ws HTTP/1.1\r\nHost: live.example.com\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
	c.SetDeadline(time.Now().Add(time.Minute))
	in := bufio.NewReader(c)
	if res, err := http.ReadResponse(in, nil); err != nil || res.StatusCode != 101 {
		t.Fatalf("upgrade: got %v and error %v, want 101", res, err)
	}
	fmt.Fprint(c, "hello\n")
	if line, err := in.ReadString('\n'); line != "echo hello\n" {
		t.Errorf("got %q and error %v, want the echo", line, err)
	}
	res, err := r.client(t, r.authority(t)).Post("https://live.example.com/up", "text/plain", strings.NewReader(strings.Repeat("x", 1<<20)))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if b, _ := io.ReadAll(res.Body); string(b) != "1048576" {
		t.Errorf("upload: got %s bytes, want 1048576", b)
	}
}

// TestUnmappedTrafficIsNotChanged: a server on this machine replaces an external one.
func TestUnmappedTrafficIsNotChanged(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{})
	outside := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		fmt.Fprintf(w, "outside %s fwd=%s", req.Host, req.Header.Get("X-Forwarded-For"))
	}))
	defer outside.Close()
	its := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: outside.Certificate().Raw})
	r.mustMap(t, "mapped.example.com", "1")
	// The client trusts only the certificate of the server, so the proxy cannot have intercepted the connection.
	if status, body := get(t, r.client(t, its), outside.URL); status != 200 ||
		!strings.HasPrefix(body, "outside 127.0.0.1") || !strings.HasSuffix(body, "fwd=") {
		t.Errorf("https: got %d %q, want the server itself", status, body)
	}
	_, plain := service(t, "plain")
	if status, body := get(t, r.client(t), "http://"+plain+"/x"); status != 200 || body != "plain: GET /x host="+plain+" proto=" {
		t.Errorf("http: got %d %q, want the request unchanged", status, body)
	}
}

func TestProgramsReachMappedHosts(t *testing.T) {
	t.Parallel()
	testenv.Need(t, "curl", "python3", "node", "git")
	r := newRig(t, Config{})
	port, _ := service(t, "mapped")
	r.mustMap(t, "https://api.foreign.example", strconv.Itoa(port))
	r.mustMap(t, "http://plain.foreign.example", strconv.Itoa(port))
	env := r.cfg.Runner.Environ()
	for name, command := range map[string][]string{
		"curl":          {"curl", "-sS", "URL"},
		"curl by socks": {"curl", "-sS", "--proxy", strings.Replace(r.relay.URL(), "http", "socks5h", 1), "URL"},
		"python":        {"python3", "-c", "import sys, urllib.request; sys.stdout.write(urllib.request.urlopen('URL').read().decode())"},
		"requests":      {python(t), "-c", "import sys, requests; sys.stdout.write(requests.get('URL').text)"},
		"node fetch":    {"node", "-e", "fetch('URL').then(r => r.text()).then(t => process.stdout.write(t))"},
		"node https":    {"node", "-e", "require('URL'.split(':')[0]).get('URL', r => r.pipe(process.stdout))"},
	} {
		for _, site := range []string{"https://api.foreign.example/hello", "http://plain.foreign.example/hello"} {
			t.Run(name+" "+site[:5], func(t *testing.T) {
				args := slices.Clone(command)
				for i := range args {
					args[i] = strings.ReplaceAll(args[i], "URL", site)
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				cmd := exec.CommandContext(ctx, args[0], args[1:]...)
				cmd.Env = env
				out, err := cmd.CombinedOutput()
				if err != nil || !strings.HasPrefix(string(out), "mapped: GET /hello host=") {
					t.Errorf("got %q and error %v, want the service's reply", out, err)
				}
			})
		}
	}
}

// python returns a Python with the package requests.
func python(t *testing.T) string {
	t.Helper()
	for _, path := range []string{"../../../.venv/bin/python", "/usr/bin/python3"} {
		if exec.Command(path, "-c", "import requests").Run() == nil {
			full, err := filepath.Abs(path)
			if err != nil {
				t.Fatal(err)
			}
			return full
		}
	}
	testenv.Lack(t, "no Python has the package requests")
	return ""
}

// upstreamProxy starts a proxy that requires a password.
func upstreamProxy(t *testing.T, want string, seen chan<- string) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		credentials := http.Request{Header: http.Header{"Authorization": r.Header["Proxy-Authorization"]}}
		if user, password, _ := credentials.BasicAuth(); user+":"+password != want {
			w.WriteHeader(http.StatusProxyAuthRequired)
			return
		}
		seen <- r.Method + " " + r.Host
		if r.Method != http.MethodConnect {
			fmt.Fprint(w, "through upstream")
			return
		}
		conn, _, _ := http.NewResponseController(w).Hijack()
		defer conn.Close()
		io.WriteString(conn, "HTTP/1.1 200 OK\r\n\r\nbanner")
	}))
	t.Cleanup(func() { s.CloseClientConnections(); s.Close() })
	return s.Listener.Addr().String()
}

func TestUpstream(t *testing.T) {
	t.Parallel()
	seen := make(chan string, 10)
	address := upstreamProxy(t, "user:s3cret", seen)
	r := newRig(t, Config{})
	up, err := r.SetUpstream(t.Context(), UpstreamIn{Server: "http://user:s3cret@" + address})
	if err != nil || up.Addr != address || *up.Username != "user" || strings.Contains(*up.Password, "s3cret") {
		t.Fatalf("got %+v and error %v, want the address and a masked password", up, err)
	}
	if status, body := get(t, r.client(t), "http://outside.example/x"); status != 200 || body != "through upstream" {
		t.Errorf("plain: got %d %q, want the upstream's reply", status, body)
	}
	if got := <-seen; got != "GET outside.example" {
		t.Errorf("got %q, want the plain request", got)
	}
	conn, err := net.Dial("tcp", r.relay.Address())
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(conn, "CONNECT outside.example:443 HTTP/1.1\r\nHost: outside.example:443\r\n\r\n")
	all, _ := io.ReadAll(conn)
	conn.Close()
	if !strings.HasSuffix(string(all), "banner") || <-seen != "CONNECT outside.example:443" {
		t.Errorf("tunnel: got %q, want the response of the upstream", all)
	}
	// A new exclusion applies immediately.
	_, plain := service(t, "direct")
	if _, err := r.AddExclude(t.Context(), PatternIn{"127.0.0.0/8"}); err != nil {
		t.Fatal(err)
	}
	if status, body := get(t, r.client(t), "http://"+plain+"/"); status != 200 || !strings.HasPrefix(body, "direct:") {
		t.Errorf("excluded: got %d %q, want a direct connection", status, body)
	}
	if _, err := r.RemoveExclude(t.Context(), PatternIn{"127.0.0.0/8"}); err != nil {
		t.Error(err)
	}
	if _, err := r.RemoveExclude(t.Context(), PatternIn{"127.0.0.0/8"}); err == nil {
		t.Error("removed twice: got no error, want one")
	}
	if _, err := r.RemoveUpstream(t.Context(), op.None{}); err != nil {
		t.Error(err)
	}
	if got, err := r.GetUpstream(t.Context(), op.None{}); got != nil || err != nil {
		t.Errorf("got %+v and error %v, want none", got, err)
	}
}

func TestCredentialCommand(t *testing.T) {
	t.Parallel()
	seen := make(chan string, 10)
	r := newRig(t, Config{})
	word := filepath.Join(r.state, "word")
	if err := os.WriteFile(word, []byte("u:first"), 0o600); err != nil {
		t.Fatal(err)
	}
	address := upstreamProxy(t, "u:second", seen)
	if _, err := r.SetUpstream(t.Context(), UpstreamIn{Server: address, AuthCmd: new("cat " + word)}); err != nil {
		t.Fatal(err)
	}
	// The password has changed: the command runs again.
	if err := os.WriteFile(word, []byte("u:second\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := r.dial.tunnel(t.Context(), "outside.example", 443, nil)
	if err != nil {
		t.Fatalf("got %v, want a tunnel with the new password", err)
	}
	c.Close()
	for command, want := range map[string]string{"exit 3": "exit code 3", "echo nothing": "user:password", "sleep 100 & wait": ""} {
		if want == "" {
			continue
		}
		if _, err := r.SetUpstream(t.Context(), UpstreamIn{Server: address, AuthCmd: &command}); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", command, err, want)
		}
	}
}

func TestSOCKSUpstream(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Read(make([]byte, 1))
			if target, port, err := socks.Accept(c); err == nil {
				socks.Answer(c, socks.OK)
				fmt.Fprintf(c, "to %s %d", target, port)
			}
			c.Close()
		}
	}()
	r := newRig(t, Config{Upstream: "socks5://" + l.Addr().String()})
	c, err := r.dial.tunnel(t.Context(), "outside.example", 443, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if b, _ := io.ReadAll(c); string(b) != "to outside.example 443" {
		t.Errorf("got %q, want the name resolved upstream", b)
	}
}

// TestEgressProxyDecides: no setting of the proxy allows a host that the egress proxy refuses.
func TestEgressProxyDecides(t *testing.T) {
	t.Parallel()
	requests := make(chan string, 10)
	hub := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests <- r.Method + " " + r.Host
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprint(w, "cove: not on the list")
	}))
	defer hub.Close()
	r := newRig(t, Config{Egress: func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "tcp", hub.Listener.Addr().String())
	}})
	c := r.client(t)
	check := func(what string) {
		t.Helper()
		status, body := get(t, c, "http://denied.example/")
		if status != 403 && status != 502 || !strings.Contains(body, "not on the list") {
			t.Errorf("%s, plain: got %d %q, want the refusal of the egress proxy", what, status, body)
		}
		if _, body := get(t, c, "https://denied.example/"); !strings.Contains(body, "Forbidden") && !strings.Contains(body, "Bad Gateway") {
			t.Errorf("%s, tunnel: got %q, want the refusal of the egress proxy", what, body)
		}
	}
	check("no upstream")
	if a, b := <-requests, <-requests; a != "GET denied.example" || b != "CONNECT denied.example:443" {
		t.Errorf("got %q and %q, want both requests at the egress proxy", a, b)
	}
	if _, err := r.SetUpstream(t.Context(), UpstreamIn{Server: "proxy.example:3128"}); err != nil {
		t.Fatal(err)
	}
	check("with an upstream")
	if a := <-requests; a != "CONNECT proxy.example:3128" {
		t.Errorf("got %q, want a connection to the upstream through the egress proxy", a)
	}
}

func TestOwnListenersAreRefusedAsTargets(t *testing.T) {
	t.Parallel()
	reserved, _ := service(t, "internal")
	r := newRig(t, Config{Deny: func(port int) bool { return port == reserved }})
	p := strconv.Itoa(reserved)
	for _, target := range []string{p, "127.0.0.1:" + p, "localhost:" + p, "[::1]:" + p, "::1:" + p, "http://127.0.0.1:" + p, p + "/v1",
		"127.1:3000", "0177.0.0.1:3000", "2130706433:3000", "0x7f000001:3000", "0:3000", "0.0.0.0:3000", "[::]:3000",
		"[::ffff:127.0.0.1]:3000", "169.254.169.254:80",
		"example.com:80", "0" + p, "+" + p, "https://127.0.0.1:3000", "", "3000?x", "/x", "unix:/x", "3000/a b", "localtest.me:3000"} {
		if m, err := r.AddMapping(t.Context(), MappingIn{"x.example", target}); err == nil {
			t.Errorf("target %q: got %+v, want an error", target, m)
		}
	}
	for _, source := range []string{"localhost", "x.localhost", "127.0.0.1", "[::1]", "0.0.0.0", "", "http://",
		"ftp://x", "a b", "x.example?q", "a..b", "x:0", "x:99999", "user@x", "*.*.*.*.*.x"} {
		if m, err := r.AddMapping(t.Context(), MappingIn{source, "3000"}); err == nil {
			t.Errorf("source %q: got %+v, want an error", source, m)
		}
	}
}

// TestMergedSlashes: a source whose slashes a client has merged is the same source.
func TestMergedSlashes(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{})
	for _, x := range [][2]string{{"http:/x.example", "http://x.example"}, {"https://x.example:8443/a", "https:/x.example:8443/a"}} {
		m, err := r.AddMapping(t.Context(), MappingIn{x[0], "3000"})
		if err != nil || m.SourceHost != "x.example" {
			t.Errorf("%s: got %+v, %v, want the host x.example", x[0], m, err)
		}
		if _, err := r.RemoveMapping(t.Context(), SourceIn{x[1]}); err != nil {
			t.Errorf("%s: got %v, want it removed as %s", x[0], err, x[1])
		}
	}
	for _, source := range []string{"ftp:/x.example", "http:x.example", "x.example:/a"} {
		if m, err := r.AddMapping(t.Context(), MappingIn{source, "3000"}); err == nil {
			t.Errorf("%s: got %+v, want an error", source, m)
		}
	}
}

func TestOwnListenersAreRefusedAsHosts(t *testing.T) {
	t.Parallel()
	reserved, _ := service(t, "internal")
	r := newRig(t, Config{Deny: func(port int) bool { return port == reserved }})
	hosts := []string{"127.0.0.1", "localhost", "127.0.0.2", "127.1", "0177.0.0.1", "2130706433", "0x7f000001",
		"0.0.0.0", "[::1]", "[::]", "[::ffff:127.0.0.1]", "LOCALHOST.", "x.localhost"}
	if address := interfaceAddress(); address != "" {
		hosts = append(hosts, address)
	}
	for _, host := range hosts {
		c := r.connect(t)
		fmt.Fprintf(c, "GET http://%s:%d/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", host, reserved)
		if all, _ := io.ReadAll(c); strings.Contains(string(all), "internal:") {
			t.Errorf("GET %s: got %q, want an error", host, all)
		}
		c = r.connect(t)
		fmt.Fprintf(c, "CONNECT %s:%d HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", host, reserved)
		c.SetReadDeadline(time.Now().Add(20 * time.Second))
		if res, err := http.ReadResponse(bufio.NewReader(c), nil); err == nil && res.StatusCode == 200 {
			t.Errorf("CONNECT %s: got 200, want an error", host)
		}
		if err := socks.Connect(r.connect(t), strings.Trim(host, "[]"), reserved, "", ""); err == nil {
			t.Errorf("SOCKS %s: got a connection, want an error", host)
		}
	}
}

// interfaceAddress returns an IPv4 address of this machine that is not loopback, or an empty string.
func interfaceAddress() (address string) {
	list, err := net.InterfaceAddrs()
	if err != nil {
		return ""
	}
	for _, a := range list {
		if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil && !n.IP.IsLoopback() {
			address = n.IP.String()
		}
	}
	return address
}

// TestReservedPortsAreCheckedPerRequest: a port may become reserved after it was mapped, and redirects are not followed.
func TestReservedPortsAreCheckedPerRequest(t *testing.T) {
	t.Parallel()
	reserved, address := service(t, "internal")
	var late atomic.Int64
	r := newRig(t, Config{Deny: func(port int) bool { return port == reserved || int64(port) == late.Load() }})
	redirect := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		http.Redirect(w, req, "http://"+address+"/", http.StatusFound)
	}))
	defer redirect.Close()
	r.mustMap(t, "late.example", strconv.Itoa(redirect.Listener.Addr().(*net.TCPAddr).Port))
	if status, body := get(t, r.client(t), "http://late.example/"); status != 302 {
		t.Errorf("redirect: got %d %q, want the redirect itself", status, body)
	}
	late.Store(int64(redirect.Listener.Addr().(*net.TCPAddr).Port))
	r.mapped.CloseIdleConnections()
	if status, body := get(t, r.client(t), "http://late.example/"); status != 403 {
		t.Errorf("reserved later: got %d %q, want 403", status, body)
	}
	if h, err := r.Health(t.Context(), op.None{}); err != nil || h.Healthy || h.Consistent || len(h.Inconsistencies) != 1 {
		t.Errorf("health: got %+v and error %v, want the inconsistency", h, err)
	}
}

func TestHostOfAnotherTunnelIsRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{})
	port, _ := service(t, "mapped")
	r.mustMap(t, "one.example", strconv.Itoa(port))
	c, err := net.Dial("tcp", r.relay.Address())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprint(c, "CONNECT one.example:80 HTTP/1.1\r\nHost: one.example:80\r\n\r\nGET / HTTP/1.1\r\nHost: "+
		"two.example\r\nConnection: close\r\n\r\n")
	all, _ := io.ReadAll(c)
	if !strings.Contains(string(all), "421 Misdirected Request") {
		t.Errorf("got %q, want 421", all)
	}
}

func TestDiagnoseAndHealth(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{Exclude: []string{".internal.example", "10.0.0.0/8"}, Include: nil})
	port, address := service(t, "mapped")
	r.mustMap(t, "https://api.example.com", strconv.Itoa(port))
	r.mustMap(t, "dead.example.com", "1")
	diagnose := func(url string) Diagnosis {
		t.Helper()
		d, err := r.Diagnose(t.Context(), DiagnoseIn{url})
		if err != nil {
			t.Fatalf("%s: %v", url, err)
		}
		return d
	}
	if d := diagnose("https://api.example.com/x"); d.Route != "mapping" || d.Mapping == nil || !d.Reachable ||
		*d.Target != address || d.Error != nil {
		t.Errorf("got %+v, want the mapping, reachable", d)
	}
	if d := diagnose("dead.example.com"); d.Route != "mapping" || d.Reachable || d.Error == nil ||
		!strings.Contains(*d.Error, "nothing answers on port 1") {
		t.Errorf("got %+v, want the mapping, and why it is not reachable", d)
	}
	if d := diagnose("http://" + address); d.Route != "direct" || !d.Reachable || d.Mapping != nil {
		t.Errorf("got %+v, want a direct route", d)
	}
	if _, err := r.SetUpstream(t.Context(), UpstreamIn{Server: "u:p@127.0.0.1:1"}); err != nil {
		t.Fatal(err)
	}
	if d := diagnose("https://outside.example"); d.Route != "upstream" || *d.Target != "127.0.0.1:1" || d.Reachable || d.Error == nil {
		t.Errorf("got %+v, want the upstream and that it does not answer", d)
	}
	if d := diagnose("https://x.internal.example"); d.Route != "bypass" || !strings.Contains(d.Rule, ".internal.example") {
		t.Errorf("got %+v, want the bypass and its pattern", d)
	}
	for _, bad := range []string{"", "http://", "ftp://x/", "http://127.1/", "http://x:0/"} {
		if d, err := r.Diagnose(t.Context(), DiagnoseIn{bad}); err == nil {
			t.Errorf("%q: got %+v, want an error", bad, d)
		}
	}
	if h, err := r.Health(t.Context(), op.None{}); err != nil || !h.Healthy || !h.ProxyAlive || !h.RouterAlive || !h.Consistent {
		t.Errorf("got %+v and error %v, want it healthy", h, err)
	}
}

// TestDiagnoseNamesTheEgressRule: diagnose returns the decision of the hub's egress proxy with its rule, the program that was
// denied, and the fix.
func TestDiagnoseNamesTheEgressRule(t *testing.T) {
	t.Parallel()
	out, err := egress.New(egress.Config{
		Network: sandbox.Network{Mode: sandbox.NetworkAllow, Allow: []string{"!bad.example", "*.example:443"}},
		Resolve: func(_ context.Context, name string) ([]netip.Addr, error) {
			return nil, &net.DNSError{Err: "no such host", Name: name, IsNotFound: true}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() { defer close(served); out.Serve(l) }()
	t.Cleanup(func() { out.Close(); <-served })
	dial := func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "tcp", l.Addr().String())
	}
	r := newRig(t, Config{Egress: dial})
	c, err := dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	io.WriteString(c, "CONNECT bad.example:443 HTTP/1.1\r\nHost: bad.example\r\nUser-Agent: pip/24.0\r\nConnection: close\r\n\r\n")
	io.Copy(io.Discard, c)
	for url, want := range map[string]Egress{
		"bad.example": {Verdict: "denied", Rule: "!bad.example", Program: "pip/24.0",
			Fix: "its owner can change the rules with cove network set NAME"},
		"other.test":              {Verdict: "denied", Fix: "its owner can allow it with cove egress allow NAME other.test:443"},
		"http://a.example/x":      {Verdict: "denied", Fix: "its owner can allow it with cove egress allow NAME a.example:80"},
		"a.example":               {Verdict: "failed", Rule: "*.example:443"},
		"wss://a.example:443/x?y": {Verdict: "failed", Rule: "*.example:443"},
	} {
		d, err := r.Diagnose(t.Context(), DiagnoseIn{url})
		if err != nil || d.Egress == nil || d.Reachable || d.Error == nil || *d.Error == "" || d.Egress.Verdict != want.Verdict ||
			d.Egress.Rule != want.Rule || d.Egress.Fix != want.Fix || d.Egress.Program != want.Program {
			t.Errorf("%s: got %+v %+v %v, want %+v", url, d, d.Egress, err, want)
		}
	}
}

func TestConfiguration(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"https://a.example=3000, b.example=127.0.0.1:4000/x",
		"https://a.example=3000;b.example=127.0.0.1:4000/x\n", `{"https://a.example": 3000, "b.example": "127.0.0.1:4000/x"}`} {
		s := New(Config{Map: text, Exclude: []string{"*.x", ".y", "10.0.0.0/8"}, Include: []string{"z"}, Upstream: "socks5://p:1"})
		list, _ := s.ListMappings(t.Context(), op.None{})
		var sources []string
		for _, m := range list {
			sources = append(sources, m.Source)
		}
		slices.Sort(sources)
		if d := cmp.Diff([]string{"b.example", "https://a.example"}, sources); s.CheckConfig() != nil || d != "" {
			t.Errorf("%q: got error %v and %s", text, s.CheckConfig(), d)
		}
		s.Close()
	}
	for _, c := range []Config{{Map: "a.example"}, {Map: "a.example=host:1"}, {Map: "{"}, {Exclude: []string{"a/b"}},
		{Upstream: "ftp://x"}, {Upstream: "http://"}} {
		s := New(c)
		if err := s.CheckConfig(); err == nil {
			t.Errorf("%+v: got no error, want one", c)
		}
		s.Close()
	}
}

func TestPatterns(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		pattern, host string
		want          bool
	}{
		{"a.example", "a.example", true}, {"a.example", "x.a.example", true}, {"a.example", "ba.example", false},
		{"*.a.example", "x.a.example", true}, {"*.a.example", "a.example", false}, {".a.example", "a.example", true},
		{".a.example", "x.y.a.example", true},
		{"10.0.0.0/8", "10.1.2.3", true}, {"10.0.0.0/8", "11.1.2.3", false}, {"10.0.0.0/8", "10.example", false},
		{"2001:db8::/32", "2001:db8::1", true}, {"*", "anything", true},
	} {
		p, err := parsePattern(c.pattern)
		if err != nil || p.matches(c.host) != c.want {
			t.Errorf("%s and %s: got %v and error %v, want %v", c.pattern, c.host, p.matches(c.host), err, c.want)
		}
	}
}

func FuzzMapping(f *testing.F) {
	f.Add("https://*.example.com:8443/v1", "127.0.0.1:3000/x")
	f.Add("a", "1")
	f.Fuzz(func(t *testing.T, source, target string) {
		m, err := parseMapping(source, target, func(port int) bool { return port == 8080 })
		if err != nil {
			return
		}
		if m.toPort < 1 || m.toPort > 65535 || m.toPort == 8080 || m.toHost != "127.0.0.1" && m.toHost != "::1" ||
			m.host == "" || !strings.HasPrefix(m.path, "/") {
			t.Errorf("%q to %q: got %+v, want a local target", source, target, m)
		}
	})
}
