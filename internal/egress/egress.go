// Package egress is the way out of a sandbox that has no network of its own: a
// proxy that speaks HTTP, CONNECT and SOCKS5 on one listener.
//
// It owns the connections that pass through it, the rules they are held against
// and the record of them. It resolves names itself and connects to the very
// address that it has checked, so that a name cannot lead elsewhere between the
// check and the connection. It refuses this machine, private networks and the
// addresses where clouds keep their secrets, whatever a sandbox's own rules
// say: only the operator opens those.
//
// For hosts that a sandbox has credentials for, it adds them to the requests: it
// then stands in for the host with a certificate of the hub's own Authority, and
// speaks to the host itself over TLS that it has verified. Connections to all
// other hosts pass as they are. It refuses to add a credential to a request for
// any host but the one that was connected to. What a trusted host repeats of it
// in a body is not searched for.
package egress

import (
	"context"
	"crypto/x509"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cove-sandbox/cove/internal/sandbox"
)

// Config of a proxy. Zero fields have defaults; the zero Network is none.
type Config struct {
	Network sandbox.Network
	// Private lists addresses that are not public and may be reached all the
	// same. It is the operator's; a sandbox's rules can only narrow it down.
	Private []netip.Prefix

	// Resolve looks a name up; by default the machine's own resolver.
	Resolve func(ctx context.Context, name string) ([]netip.Addr, error)
	// Dial connects to an address that was checked.
	Dial func(ctx context.Context, to netip.AddrPort) (net.Conn, error)
	// Self lists the addresses of this machine, which are never reached.
	Self func() []netip.Addr

	// Credentials are added to requests to the hosts they are for. Sandboxes must
	// trust the Authority, which then vouches for these hosts.
	Credentials []Credential
	Authority   *Authority
	// Roots vouch for the hosts themselves; by default those of the system.
	Roots *x509.CertPool

	MaxConns int // at once; default 512
	Keep     int // records; default 512
	// Observe is told of every decision, from many goroutines. It must not block.
	Observe func(Record)
	Log     *slog.Logger
}

const (
	resolveTimeout = 10 * time.Second
	dialTimeout    = 15 * time.Second
	helloTimeout   = 30 * time.Second // until a client has said what it wants
	innerIdle      = 2 * time.Minute
	selfEvery      = 5 * time.Second
)

// Proxy serves one sandbox.
type Proxy struct {
	cfg    Config
	rules  atomic.Pointer[Rules]
	keys   atomic.Pointer[keys]
	ring   ring
	plain  *http.Transport
	server *http.Server
	funnel *funnel
	within *http.Server // for what is inside tunnels
	inner  *funnel
	life   context.Context
	end    context.CancelFunc

	mu     sync.Mutex
	closed bool
	lists  map[net.Listener]bool
	conns  map[net.Conn]bool
	links  map[*link]bool
	flows  map[*flow]bool
	seen   Stats
	work   sync.WaitGroup

	sent, received, brokered atomic.Int64
	verdicts                 [3]atomic.Int64

	selfMu sync.Mutex
	self   []netip.Addr
	selfAt time.Time
}

// New returns a proxy that holds connections against cfg.Network. It starts nothing.
func New(cfg Config) (*Proxy, error) {
	rules, err := Parse(cfg.Network)
	if err != nil {
		return nil, err
	}
	if cfg.Resolve == nil {
		cfg.Resolve = func(ctx context.Context, name string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", name)
		}
	}
	if cfg.Dial == nil {
		cfg.Dial = func(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "tcp", to.String())
		}
	}
	if cfg.Self == nil {
		cfg.Self = interfaces
	}
	if cfg.MaxConns <= 0 {
		cfg.MaxConns = 512
	}
	if cfg.Keep <= 0 {
		cfg.Keep = 512
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	p := &Proxy{
		cfg: cfg, ring: ring{max: cfg.Keep},
		lists: map[net.Listener]bool{}, conns: map[net.Conn]bool{}, links: map[*link]bool{}, flows: map[*flow]bool{},
	}
	ks, err := p.parse(cfg.Credentials)
	if err != nil {
		return nil, err
	}
	p.rules.Store(rules)
	p.keys.Store(&ks)
	p.life, p.end = context.WithCancel(context.Background())
	p.plain = &http.Transport{
		DialContext:            p.dialPlain,
		MaxIdleConns:           32,
		IdleConnTimeout:        30 * time.Second,
		MaxResponseHeaderBytes: 256 << 10,
		DisableCompression:     true,
	}
	return p, nil
}

// interfaces lists the addresses of this machine.
func interfaces() []netip.Addr {
	var out []netip.Addr
	list, err := net.InterfaceAddrs()
	if err != nil {
		return nil
	}
	for _, a := range list {
		if n, ok := a.(*net.IPNet); ok {
			if ip, ok := netip.AddrFromSlice(n.IP); ok {
				out = append(out, ip.Unmap())
			}
		}
	}
	return out
}

// own tells whether an address is one of this machine.
func (p *Proxy) own(ip netip.Addr) bool {
	p.selfMu.Lock()
	defer p.selfMu.Unlock()
	if p.selfAt.IsZero() || time.Since(p.selfAt) > selfEvery {
		p.self, p.selfAt = p.cfg.Self(), time.Now()
	}
	for _, a := range p.self {
		if a == ip {
			return true
		}
	}
	return false
}

// Set replaces the rules. Connections that they no longer allow are cut.
func (p *Proxy) Set(n sandbox.Network) error {
	rules, err := Parse(n)
	if err != nil {
		return err
	}
	p.mu.Lock()
	p.rules.Store(rules)
	var cut []*link
	for l := range p.links {
		if rules.Allow(l.host, l.port) != nil {
			cut = append(cut, l)
		}
	}
	p.mu.Unlock()
	for _, l := range cut {
		l.Conn.Close()
	}
	p.plain.CloseIdleConnections()
	return nil
}

// Records returns what passed or was refused lately, oldest first.
func (p *Proxy) Records() []Record { return p.ring.list() }

// Serve answers on l until the proxy is closed or l fails; it closes l. It may be
// called again with another listener.
func (p *Proxy) Serve(l net.Listener) error {
	defer l.Close()
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return net.ErrClosed
	}
	if p.server == nil {
		p.startHTTP()
	}
	p.lists[l] = true
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		delete(p.lists, l)
		p.mu.Unlock()
	}()
	for pause := time.Duration(0); ; {
		c, err := l.Accept()
		if err == nil {
			pause = 0
			p.admit(c)
			continue
		}
		// Out of descriptors: the listener is fine, and time will tell.
		if ne, ok := errors.AsType[net.Error](err); !ok || !ne.Timeout() && !temporary(err) || p.life.Err() != nil {
			return err
		}
		pause = min(max(2*pause, 5*time.Millisecond), time.Second)
		select {
		case <-p.life.Done():
			return net.ErrClosed
		case <-time.After(pause):
		}
	}
}

// startHTTP makes the server for clients that speak HTTP; p.mu is held.
func (p *Proxy) startHTTP() {
	p.funnel = &funnel{conns: make(chan net.Conn), done: p.life.Done()}
	forward := &httputil.ReverseProxy{
		Rewrite:       rewrite,
		Transport:     tripper(p.roundTrip),
		FlushInterval: -1,
		ErrorHandler:  p.failed,
		ErrorLog:      slog.NewLogLogger(p.cfg.Log.Handler(), slog.LevelDebug),
	}
	p.server = &http.Server{
		Handler:           p.handler(forward),
		BaseContext:       func(net.Listener) context.Context { return p.life },
		ReadHeaderTimeout: helloTimeout,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    256 << 10,
		ErrorLog:          slog.NewLogLogger(p.cfg.Log.Handler(), slog.LevelDebug),
	}
	p.inner = &funnel{conns: make(chan net.Conn), done: p.life.Done()}
	p.within = &http.Server{
		Handler:     p.inside(forward),
		BaseContext: p.server.BaseContext,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, tunnelKey{}, c)
		},
		ReadHeaderTimeout: helloTimeout,
		IdleTimeout:       innerIdle,
		MaxHeaderBytes:    p.server.MaxHeaderBytes,
		ErrorLog:          p.server.ErrorLog,
	}
	p.work.Go(func() { p.server.Serve(p.funnel) })
	p.work.Go(func() { p.within.Serve(p.inner) })
}

// tripper is a function that sends requests.
type tripper func(*http.Request) (*http.Response, error)

func (t tripper) RoundTrip(r *http.Request) (*http.Response, error) { return t(r) }

// admit takes a connection, unless there are too many.
func (p *Proxy) admit(c net.Conn) {
	p.mu.Lock()
	if p.closed || len(p.conns) >= p.cfg.MaxConns {
		p.mu.Unlock()
		c.Close()
		return
	}
	t := &tracked{Conn: c, p: p}
	p.conns[t] = true
	p.work.Add(1)
	p.mu.Unlock()
	go func() {
		defer p.work.Done()
		p.greet(t)
	}()
}

// begin joins a request to the proxy's life: Close waits until it is done.
func (p *Proxy) begin() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.work.Add(1)
	return true
}

// greet finds out which language a client speaks.
func (p *Proxy) greet(c *tracked) {
	c.SetDeadline(time.Now().Add(helloTimeout))
	var first [1]byte
	if _, err := c.Conn.Read(first[:]); err != nil {
		c.Close()
		return
	}
	if first[0] == socksVersion {
		defer c.Close()
		p.socks(c)
		return
	}
	c.SetDeadline(time.Time{})
	c.peeked = first[:]
	if !p.funnel.give(c) {
		c.Close()
	}
}

// Done is closed when the proxy was closed.
func (p *Proxy) Done() <-chan struct{} { return p.life.Done() }

// Close ends everything that passes through, and waits for it.
func (p *Proxy) Close() error {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		p.work.Wait()
		return nil
	}
	p.closed = true
	p.end()
	for l := range p.lists {
		l.Close()
	}
	var open []net.Conn
	for c := range p.conns {
		open = append(open, c)
	}
	for l := range p.links {
		open = append(open, l.Conn)
	}
	server, within := p.server, p.within
	p.mu.Unlock()
	for _, c := range open {
		c.Close()
	}
	if server != nil {
		server.Close()
		within.Close()
	}
	p.plain.CloseIdleConnections()
	p.work.Wait()
	return nil
}
