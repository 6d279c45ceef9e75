// Package outbound is the suite of connections that programs in a sandbox open without a proxy. Every provider that connects
// them runs it. It owns the servers outside, which it serves itself under public names and addresses, and the egress proxies of
// the sandbox.
package outbound

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/network/certificate"
	"github.com/cove-sandbox/cove/internal/network/egress"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// Box is a sandbox of the tested provider.
type Box struct {
	// Shell runs a shell command and returns its output, also if the command fails.
	Shell func(command string) (string, error)
	// Listen listens for the connections of the sandbox; see sandbox.Egresser.
	Listen func(context.Context) (net.Listener, error)
	// Reopen replaces the hub.
	Reopen func() error
	// Neighbour runs a command in another sandbox.
	Neighbour func(command string) (string, error)
	// Probe is the path inside of the program that Build builds. Outside runs it on this machine.
	Probe   string
	Outside func(args ...string) (string, error)
	// Sudo begins commands that run as root; empty if that is impossible.
	Sudo string
	// Unsandboxed says that programs cannot create namespaces, so Chromium must not use its own sandbox.
	Unsandboxed bool
	// Kernel says that programs run on another kernel, whose sockets differ in details.
	Kernel bool
}

// Build builds the program that attacks from inside.
func Build(t *testing.T, path string) {
	t.Helper()
	testenv.Build(t, map[string]string{path: "../providertest/outbound/testdata/probe"})
}

// Run runs the suite. Each case gets a new box.
func Run(t *testing.T, open func(t *testing.T) *Box) {
	run(t, open, map[string]func(*outside){
		"programs": testPrograms, "more programs": testMorePrograms, "attacks": testAttacks, "requests": testRequests,
		"sockets": testSockets, "many connections": testMany, "restart of the hub": testRestart, "measured": measure,
	})
}

// RunMinimal runs the parts of the suite that need only the probe and, as /bin/sh, BusyBox.
func RunMinimal(t *testing.T, open func(t *testing.T) *Box) {
	run(t, open, map[string]func(*outside){
		"programs": testMinimalPrograms, "attacks": testAttacks, "restart of the hub": testRestart, "measured": measure,
	})
}

func run(t *testing.T, open func(t *testing.T) *Box, cases map[string]func(*outside)) {
	for name, run := range cases {
		t.Run(name, func(t *testing.T) {
			if name == "more programs" || name == "many connections" || name == "measured" {
				testenv.Long(t)
			}
			if name == "many connections" {
				raiseFiles(t)
			}
			run(newOutside(t, open(t)))
		})
	}
}

// Serve serves the connections of a sandbox, to servers for HTTP and HTTPS under all names, until the test ends.
func Serve(t *testing.T, b *Box, rules ...string) {
	t.Helper()
	newOutside(t, b).serve(egress.Config{}, rules...)
}

// outside is what a sandbox can connect to.
type outside struct {
	*testing.T
	*Box
	proxy *egress.Proxy
	real  *certificate.Authority // of the servers

	mu      sync.Mutex
	ports   map[int]string // address of the server for each port
	hosts   []string       // that were allowed and reached
	rebound int
}

// publicAddress is the address of all names outside.
var publicAddress = netip.MustParseAddr("93.184.215.14")

func newOutside(t *testing.T, b *Box) *outside {
	t.Helper()
	o := &outside{T: t, Box: b, ports: map[int]string{}}
	o.real = o.authority()
	o.serveWeb()
	return o
}

func (o *outside) authority() *certificate.Authority {
	o.Helper()
	a, err := certificate.OpenAuthority(filepath.Join(o.TempDir(), "authority.pem"))
	if err != nil {
		o.Fatal(err)
	}
	return a
}

// serve serves the sandbox's connections with a policy.
func (o *outside) serve(cfg egress.Config, rules ...string) {
	o.Helper()
	cfg.Network = sandbox.Network{Mode: sandbox.NetworkAllow, Allow: rules}
	cfg.MaxConns, cfg.Roots = 16<<10, o.real.Pool()
	cfg.Resolve, cfg.Dial, cfg.Self = o.resolve, o.dial, func() []netip.Addr { return nil }
	cfg.Observe = func(r egress.Record) {
		o.mu.Lock()
		defer o.mu.Unlock()
		if r.Verdict == egress.Allowed {
			o.hosts = append(o.hosts, net.JoinHostPort(r.Host, fmt.Sprint(r.Port)))
		}
	}
	p, err := egress.New(cfg)
	if err != nil {
		o.Fatal(err)
	}
	l, err := o.Listen(o.Context())
	if err != nil {
		o.Fatal(err)
	}
	o.proxy = p
	var served sync.WaitGroup
	served.Go(func() { _ = p.Serve(l) })
	o.Cleanup(func() { p.Close(); served.Wait() })
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

// silent is the address of a server that does not respond.
const silent = "silent"

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

// must runs a command inside.
func (o *outside) must(command string) string {
	o.Helper()
	out, err := o.Shell(command)
	if err != nil {
		o.Fatal(err)
	}
	return out
}

// testRestart: a connection that is opened while no hub serves waits for the next one.
func testRestart(o *outside) {
	o.serve(egress.Config{}, "*.ok.test")
	get := o.Probe + " get http://web.ok.test"
	if out := o.must(get); out != "web web.ok.test" {
		o.Fatalf("got %q", out)
	}
	if err := o.proxy.Close(); err != nil {
		o.Fatal(err)
	}
	if err := o.Reopen(); err != nil {
		o.Fatal(err)
	}
	o.serve(egress.Config{}, "*.ok.test")
	if out := o.must(get); out != "web web.ok.test" {
		o.Errorf("after a restart: got %q", out)
	}
}

// testAttacks runs the probe, as the user and as root. Nothing but the allowed server may be reached.
func testAttacks(o *outside) {
	o.serve(egress.Config{}, "*.ok.test")
	port := o.listenOnMachine()
	args := []string{"127.0.0.1:" + port, "[::1]:" + port, "0.0.0.0:" + port, "[::ffff:127.0.0.1]:" + port}
	ips, _ := net.InterfaceAddrs()
	for _, ip := range ips {
		if n, ok := ip.(*net.IPNet); ok && !n.IP.IsLoopback() {
			args = append(args, net.JoinHostPort(n.IP.String(), port))
		}
	}
	out, err := o.Neighbour(o.Probe + " serve")
	if err != nil {
		o.Fatal(err)
	}
	args = append(args, strings.Fields(out)...)
	runs := map[string]string{"user": ""}
	if o.Sudo != "" {
		runs["root"] = o.Sudo + " "
	}
	for who, prefix := range runs {
		o.Run(who, func(t *testing.T) { o.attack(t, prefix+o.Probe+" "+strings.Join(args, " ")+" 2>&1") })
	}
	for _, host := range o.reached() {
		if host != "web.ok.test:80" && host != "web.ok.test:443" {
			o.Errorf("the hub connected to %s", host)
		}
	}
}

// listenOnMachine listens on a port of all addresses of this machine, for TCP and UDP. Nothing inside may reach it.
func (o *outside) listenOnMachine() (port string) {
	o.Helper()
	streams, err := net.Listen("tcp", ":0")
	if err != nil {
		o.Fatal(err)
	}
	_, port, _ = net.SplitHostPort(streams.Addr().String())
	packets, err := net.ListenPacket("udp", ":"+port)
	if err != nil {
		o.Fatal(err)
	}
	var work sync.WaitGroup
	work.Go(func() {
		for {
			c, err := streams.Accept()
			if err != nil {
				return
			}
			o.Errorf("a program connected to this machine from %s", c.RemoteAddr())
			c.Close()
		}
	})
	work.Go(func() {
		for buf := make([]byte, 64); ; {
			n, from, err := packets.ReadFrom(buf)
			if err != nil {
				return
			}
			o.Errorf("a program sent %q to this machine from %s", buf[:n], from)
		}
	})
	o.Cleanup(func() { streams.Close(); packets.Close(); work.Wait() })
	return port
}

// attack runs the probe and checks its report.
func (o *outside) attack(t *testing.T, command string) {
	out := o.must(command)
	n := 0
	for line := range strings.Lines(out) {
		name, result, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		if n++; !ok || result == "REACHED" || strings.Contains(result, "timeout") || strings.Contains(result, "redirected") {
			t.Errorf("%s: got %q, want an immediate error", name, result)
		}
	}
	if n < 90 {
		t.Errorf("got %d attempts, want at least 90: %s", n, out)
	}
}
