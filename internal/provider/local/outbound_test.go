package local_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/network/egress"
	"github.com/cove-sandbox/cove/internal/provider/local"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// outside is what a sandbox can connect to: servers on this machine, under public names and addresses.
type outside struct {
	*hub
	id    string
	proxy *egress.Proxy

	rules []string

	mu      sync.Mutex
	ports   map[int]string // address of the server for each port
	hosts   []string       // that were allowed and reached
	rebound int
}

// publicAddress is the address of all names outside.
var publicAddress = netip.MustParseAddr("93.184.215.14")

// newOutside starts a sandbox, with an egress proxy and a web server for port 80.
func newOutside(h *hub, rules ...string) *outside {
	h.t.Helper()
	o := &outside{hub: h, ports: map[int]string{}}
	o.id, o.rules = h.create(sandbox.Spec{}).ID, rules
	o.proxy = o.newProxy()
	o.serve()
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprintf(w, "web %s", r.Host) }))
	h.t.Cleanup(web.Close)
	o.ports[80] = web.Listener.Addr().String()
	return o
}

func (o *outside) newProxy() *egress.Proxy {
	o.t.Helper()
	p, err := egress.New(egress.Config{
		Network: sandbox.Network{Mode: sandbox.NetworkAllow, Allow: o.rules}, MaxConns: 16 << 10,
		Resolve: o.resolve, Dial: o.dial, Self: func() []netip.Addr { return nil },
		Observe: func(r egress.Record) {
			o.mu.Lock()
			defer o.mu.Unlock()
			if r.Verdict == egress.Allowed {
				o.hosts = append(o.hosts, net.JoinHostPort(r.Host, fmt.Sprint(r.Port)))
			}
		},
	})
	if err != nil {
		o.t.Fatal(err)
	}
	return p
}

// resolve resolves all names to a public address, but rebind.ok.test only the first time.
func (o *outside) resolve(_ context.Context, name string) ([]netip.Addr, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch name {
	case "absent.ok.test":
		return nil, &net.DNSError{Err: "no such host", Name: name, IsNotFound: true}
	case "private.ok.test":
		return []netip.Addr{netip.MustParseAddr("10.0.0.1")}, nil
	case "rebind.ok.test":
		if o.rebound++; o.rebound > 1 {
			return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil
		}
	}
	return []netip.Addr{publicAddress}, nil
}

// reached lists the hosts to which the hub has connected.
func (o *outside) reached() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.hosts)
}

// serve serves the sandbox's egress socket.
func (o *outside) serve() {
	l, err := o.Egress(o.t.Context(), o.id)
	if err != nil {
		o.t.Fatal(err)
	}
	var served sync.WaitGroup
	served.Go(func() { o.proxy.Serve(l) })
	o.t.Cleanup(func() { o.proxy.Close(); served.Wait() })
}

func (o *outside) dial(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
	o.mu.Lock()
	addr := o.ports[int(to.Port())]
	o.mu.Unlock()
	switch addr {
	case "":
		return nil, os.NewSyscallError("connect", syscall.ECONNREFUSED)
	case silent:
		<-ctx.Done()
		return nil, ctx.Err()
	}
	var d net.Dialer
	return d.DialContext(ctx, "tcp", addr)
}

// listen serves raw connections on a port outside.
func (o *outside) listen(port int, serve func(net.Conn)) {
	o.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		o.t.Fatal(err)
	}
	var work sync.WaitGroup
	work.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			work.Go(func() { defer c.Close(); serve(c) })
		}
	})
	o.t.Cleanup(func() { l.Close(); work.Wait() })
	o.ports[port] = l.Addr().String()
}

// silent is the address of a server that does not respond.
const silent = "silent"

// TestOutbound: programs that do not use a proxy reach what the policy allows, and nothing else.
func TestOutbound(t *testing.T) {
	testenv.NeedRoot(t)
	t.Parallel()
	testOutbound(t, newKit(t))
}

func TestOutboundWithoutRoot(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	const uid = 54323
	runElsewhere(t, "TestOutboundWithoutRoot", uid, &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}, 5,
		func(k kit) { testOutbound(t, k) })
}

func testOutbound(t *testing.T, k kit) {
	for name, run := range map[string]func(*hub){
		"programs": testOutboundPrograms, "attacks": testOutboundAttacks, "sockets": testOutboundSockets,
		"restart of the hub": testOutboundRestart,
	} {
		t.Run(name, func(t *testing.T) {
			cfg := k.config(t)
			cfg.Binds = append(cfg.Binds, local.Bind{Source: k.probe, Target: "/run/probe"})
			h := &hub{t: t, k: k, cfg: cfg, Provider: k.open(t, cfg)}
			t.Cleanup(h.clean)
			run(h)
		})
	}
}

// testOutboundPrograms runs programs against names that are allowed and that are not.
func testOutboundPrograms(h *hub) {
	o := newOutside(h, "*.ok.test", "*.ok.test:7", "*.ok.test:5432")
	o.listen(7, func(c net.Conn) { io.Copy(c, c) })
	o.listen(22, func(c net.Conn) { io.WriteString(c, "not ssh\r\n") })
	o.listen(5432, func(c net.Conn) { io.ReadFull(c, make([]byte, 8)); io.WriteString(c, "N") })
	if out := o.sh(o.id, "env | grep -i proxy"); strings.Contains(out, "=") {
		h.t.Fatalf("the programs have a proxy: %q", out)
	}
	const (
		python  = "/usr/bin/python3"
		asyncio = `import asyncio; r, w = asyncio.run(asyncio.open_connection("HOST", 80))`
		node    = `require("net").connect(7, "HOST", function () { this.end("hi\n") }).on("data", d => console.log("" + d)).on("error", e => ` +
			`console.log(e.code))`
		java = `class A { public static void main(String[] a) throws Exception { System.out.println(new String(new ` +
			`java.net.URL("http://HOST").openStream().readAllBytes())); } }`
	)
	for _, c := range []struct{ need, command, allowed, denied string }{
		{"getent", "getent hosts HOST; echo $?", "198.18.", "2\n"},
		{"curl", "curl -sS http://HOST", "web web.ok.test", "Could not resolve host"},
		{"wget", "wget -qO- http://HOST || echo $?", "web web.ok.test", "4\n"},
		{"bash", `bash -c 'exec 3<>/dev/tcp/HOST/7 && echo hi >&3 && head -1 <&3'`, "hi\n", "No address associated|Name or service"},
		{"git", "git ls-remote http://HOST/x.git; echo $?", "^0\n", "Could not resolve host"},
		{"ssh", "ssh -o BatchMode=yes HOST true", "kex_exchange_identification|banner", "Could not resolve hostname"},
		{"psql", "psql 'host=HOST sslmode=require connect_timeout=30'", "server does not support SSL", "could not translate host name"},
		{python, python + ` -c 'import urllib.request as u; print(u.urlopen("http://HOST").read())'`, "web web.ok.test", "not known|No address"},
		{python, python + ` -c '` + asyncio + `; print("ok")'`, "ok\n", "not known|No address"},
		{"node", `node -e 'fetch("http://HOST").then(r => r.text()).then(console.log, e => console.log(e.cause.code))'`,
			"web web.ok.test", "ENOTFOUND"},
		{"node", `node -e '` + node + `'`, "hi\n", "ENOTFOUND"},
		{"node", `node -e 'require("dns").resolve4("HOST", (e, a) => console.log(e ? e.code : a[0]))'`, "198.18.", "ENOTFOUND"},
		{"perl", `perl -MIO::Socket::INET -e '$s = IO::Socket::INET->new("HOST:7") or die $@; print $s "hi\n"; ` +
			`print <$s> =~ s/i/o/r if shutdown($s, 1)'`, "ho\n", "Bad hostname|not known"},
		{"java", "printf '%s' '" + java + "' >A.java; java -XX:TieredStopAtLevel=1 A.java", "web web.ok.test", "UnknownHostException"},
	} {
		for host, want := range map[string]string{"web.ok.test": c.allowed, "bad.test": c.denied} {
			h.t.Run(strings.Fields(c.command)[0], func(t *testing.T) {
				testenv.Need(t, c.need)
				command := "( " + strings.ReplaceAll(c.command, "HOST", host) + " ) 2>&1 </dev/null"
				out, err := o.try(o.id, http.MethodPost, "/run", command)
				if err != nil || !regexp.MustCompile(want).MatchString(out) {
					t.Errorf("%s: got %q, %v, want %q", command, out, err, want)
				}
			})
		}
	}
}

// testOutboundAttacks runs the probe. Nothing but the allowed server may be reached.
func testOutboundAttacks(h *hub) {
	o := newOutside(h, "*.ok.test")
	o.listen(443, func(c net.Conn) { io.Copy(c, c) })
	own, err := net.Listen("tcp", ":0")
	if err != nil {
		h.t.Fatal(err)
	}
	defer own.Close()
	_, port, _ := net.SplitHostPort(own.Addr().String())
	args := []string{"127.0.0.1:" + port, "[::1]:" + port, "0.0.0.0:" + port, "[::ffff:127.0.0.1]:" + port}
	ips, _ := net.InterfaceAddrs()
	for _, ip := range ips {
		if n, ok := ip.(*net.IPNet); ok && !n.IP.IsLoopback() {
			args = append(args, net.JoinHostPort(n.IP.String(), port))
		}
	}
	out := o.sh(o.id, "/run/probe "+strings.Join(args, " ")+" 2>&1")
	n := 0
	for line := range strings.Lines(out) {
		name, result, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		if n++; !ok || result == "REACHED" || strings.Contains(result, "timeout") || strings.Contains(result, "redirected") {
			h.t.Errorf("%s: got %q, want an immediate error", name, result)
		}
	}
	if n < 80 {
		h.t.Errorf("got %d attempts, want at least 80: %s", n, out)
	}
	for _, host := range o.reached() {
		if host != "web.ok.test:80" {
			h.t.Errorf("the hub connected to %s", host)
		}
	}
}

// testOutboundSockets: sockets behave like direct ones, except for the address.
func testOutboundSockets(h *hub) {
	o := newOutside(h, "*.ok.test:7", "*.ok.test:8", "*.ok.test:9")
	o.listen(7, func(c net.Conn) { io.Copy(c, c) })
	o.ports[8] = silent
	out := o.sh(o.id, "/usr/bin/python3 - 2>&1 <<'E'\n"+socketScript+"E\n")
	if out != "ok\n" {
		h.t.Errorf("got %q, want %q", out, "ok\n")
	}
}

// socketScript checks what programs observe of their sockets.
const socketScript = `
import errno, fcntl, os, select, signal, socket, threading
def check(got, want):
    if got != want: raise SystemExit(f"got {got}, want {want}")
ok = socket.gethostbyname("echo.ok.test")
check(socket.gethostbyaddr(ok)[0], "echo.ok.test")
for family, to in (socket.AF_INET, (ok, 7)), (socket.AF_INET6, ("::ffff:" + ok, 7)):
    # Blocking.
    s = socket.socket(family)
    s.setsockopt(socket.SOL_TCP, socket.TCP_NODELAY, 1)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    s.connect(to)
    check(s.getsockopt(socket.SOL_TCP, socket.TCP_NODELAY), 1)
    check(s.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE), 1)
    check(s.getsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO), 0)
    check(fcntl.fcntl(s, fcntl.F_GETFL) & os.O_NONBLOCK, 0)
    check(fcntl.fcntl(s, fcntl.F_GETFD), fcntl.FD_CLOEXEC)
    check(len(s.getpeername()), 2 if family == socket.AF_INET else 4)
    check(s.connect_ex(to), errno.EISCONN)
    s.sendall(b"hello\n"); s.shutdown(socket.SHUT_WR)
    check(s.recv(9), b"hello\n"); check(s.recv(9), b"")
    # Non-blocking: nothing is ready until the hub is connected, and a refusal is reported once.
    for port, want in (7, 0), (9, errno.ECONNREFUSED):
        s = socket.socket(family); s.setblocking(False)
        e = select.epoll(); e.register(s, select.EPOLLOUT)
        now = s.connect_ex(to[:1] + (port,))
        if want and now == want: continue # the hub was faster
        check(now, errno.EINPROGRESS)
        # After a refusal, the kernel can report the error before it reports that the socket is writable.
        ready = select.EPOLLOUT | (select.EPOLLERR if want else 0)
        check([bool(x[1] & ready) for x in e.poll(60)], [True])
        error = s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if want and error == errno.ECONNRESET: continue # see abort in package referee: the refusal follows
        check(error, want)
        check(s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR), 0)
    s = socket.socket(family); s.setblocking(False)
    e = select.epoll(); e.register(s, select.EPOLLOUT)
    check(s.connect_ex(to[:1] + (8,)), errno.EINPROGRESS)
    check(e.poll(0.2), [])
    check(s.connect_ex(to[:1] + (8,)), errno.EALREADY)
    s.close()
    check(s.fileno(), -1); check(e.poll(0.2), [])
    # A port that the rules deny, or that does not answer, fails at once.
    s = socket.socket(family); s.setblocking(False)
    check(s.connect_ex(to[:1] + (10,)), errno.ECONNREFUSED)
    s = socket.socket(family)
    check(s.connect_ex(to[:1] + (9,)), errno.ECONNREFUSED)
    s.connect(to) # and the socket is still usable
# A bound socket keeps its port.
s = socket.socket(); s.bind(("", 0)); port = s.getsockname()[1]; s.connect((ok, 7)); check(s.getsockname()[1], port)
# A timeout and a signal interrupt a connect that blocks.
s = socket.socket(); s.settimeout(0.2)
try: s.connect((ok, 8)); check("connected", "a timeout")
except TimeoutError: pass
class Alarm(Exception): pass
def ring(*_): raise Alarm
signal.signal(signal.SIGALRM, ring); signal.setitimer(signal.ITIMER_REAL, 0.2)
s = socket.socket()
try: s.connect((ok, 8)); check("connected", "a signal")
except Alarm: pass
# Signals after which calls are repeated do not.
signal.signal(signal.SIGALRM, lambda *_: None); signal.siginterrupt(signal.SIGALRM, False)
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
for _ in range(20):
    s = socket.socket(); s.connect((ok, 7)); s.sendall(b"x\n"); check(s.recv(1), b"x")
signal.setitimer(signal.ITIMER_REAL, 0)
# Many at once.
many = [socket.socket() for _ in range(200)]
for s in many: s.setblocking(False); check(s.connect_ex((ok, 7)), errno.EINPROGRESS)
for s in many: s.settimeout(60); s.sendall(b"x\n")
for s in many: check(s.recv(1), b"x")
# Unix sockets and servers inside do not concern the hub.
a = socket.create_server(("127.0.0.1", 0)); socket.create_connection(a.getsockname()).close()
try: socket.create_connection(("127.0.0.1", 1))
except ConnectionRefusedError: pass
u = socket.socket(socket.AF_UNIX); u.bind("/tmp/s"); u.listen()
socket.socket(socket.AF_UNIX).connect("/tmp/s")
print("ok")
`

// testOutboundRestart: a connection that is opened while no hub serves waits for the next one.
func testOutboundRestart(h *hub) {
	o := newOutside(h, "*.ok.test")
	if out := o.sh(o.id, "curl -sS http://web.ok.test"); out != "web web.ok.test" {
		h.t.Fatalf("got %q", out)
	}
	if err := errors.Join(o.proxy.Close(), h.Close()); err != nil {
		h.t.Fatal(err)
	}
	h.Provider = h.k.open(h.t, h.cfg)
	next := o.newProxy()
	o.proxy = next
	o.serve()
	if out := o.sh(o.id, "curl -sS http://web.ok.test"); out != "web web.ok.test" {
		h.t.Errorf("after a restart: got %q", out)
	}
}
