// Package egress is the proxy for the outgoing connections of a sandbox without a network.
// It serves HTTP, CONNECT, SOCKS5 and the protocol of package outbound on one listener.
//
// It owns its connections, the rules that they must satisfy, and their records. It
// resolves names itself and connects to the address that it has checked, so that
// a name cannot resolve differently between check and connection. It refuses this
// machine, private networks and cloud metadata services regardless of the rules of a
// sandbox: only the operator can allow those.
//
// It adds credentials to requests for hosts that a sandbox has credentials for. It
// then impersonates the host with a certificate of the hub's Authority, and
// connects to the host over verified TLS. Connections to other hosts are forwarded
// unchanged. It never adds a credential to a request for another host than that of the
// connection. A list of allowed names also applies to the names in TLS and HTTP inside a
// connection. It does not search response bodies for credentials.
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

	"github.com/cove-sandbox/cove/internal/network/certificate"
	"github.com/cove-sandbox/cove/internal/network/egress/internal/bandwidth"
	"github.com/cove-sandbox/cove/internal/network/outbound"
	"github.com/cove-sandbox/cove/internal/network/socks"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// Config configures a proxy. Zero fields have defaults; the zero Network is none.
type Config struct {
	Network sandbox.Network
	// Private lists private addresses that may be reached. The operator sets it;
	// the rules of a sandbox can only restrict it.
	Private []netip.Prefix

	// Resolve looks up a name; default: the system's resolver.
	Resolve func(ctx context.Context, name string) ([]netip.Addr, error)
	// Dial connects to a checked address.
	Dial func(ctx context.Context, to netip.AddrPort) (net.Conn, error)
	// Self lists the addresses of this machine, which are never reached.
	Self func() []netip.Addr

	// Peer returns the peer that a name stands for; false: none. It is consulted before the rules.
	Peer func(ctx context.Context, name string) (Peer, bool)

	// Credentials are added to requests to their hosts. Sandboxes must trust the
	// Authority, which issues certificates for these hosts.
	Credentials []Credential
	Authority   *certificate.Authority
	// Roots verify the hosts themselves; default: the system's.
	Roots *x509.CertPool

	// Bandwidth bounds the total of all connections, in bytes per second for each direction;
	// 0 means no bound.
	Bandwidth int64

	MaxConns int // maximum concurrent connections; default 512
	Keep     int // maximum number of records; default 512
	// Asked is called for each host that waits for approval, and AskWait is how long it waits; default a minute.
	Asked   func(Pending)
	AskWait time.Duration
	// Observe receives every decision, from many goroutines. It must not block.
	Observe func(Record)
	Log     *slog.Logger
}

const (
	resolveTimeout = 10 * time.Second
	dialTimeout    = 15 * time.Second
	peerTimeout    = time.Minute      // for a peer that may have to wake up
	helloTimeout   = 30 * time.Second // until a client has sent its request
	innerIdle      = 2 * time.Minute
	selfInterval   = 5 * time.Second // between reads of this machine's addresses
)

// Proxy serves one sandbox.
type Proxy struct {
	cfg    Config
	dialer dialer
	policy
	keys   atomic.Pointer[keys]
	ring   ring
	plain  *http.Transport
	peers  peers
	server *http.Server
	funnel *funnel
	within *http.Server // for requests in tunnels
	inner  *funnel
	life   context.Context
	cancel context.CancelFunc

	mu     sync.Mutex
	closed bool
	lists  map[net.Listener]bool
	conns  map[net.Conn]bool
	links  map[*link]bool
	flows  map[*flow]bool
	seen   Stats
	work   sync.WaitGroup

	up, down bandwidth.Limit

	sent, received, brokered atomic.Int64
	verdicts                 [3]atomic.Int64
}

// New returns a proxy that enforces cfg.Network. It starts nothing.
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
	if cfg.AskWait <= 0 {
		cfg.AskWait = askWait
	}
	if cfg.Keep <= 0 {
		cfg.Keep = 512
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	p := &Proxy{
		cfg: cfg, dialer: dialer{cfg: cfg}, ring: ring{max: cfg.Keep},
		lists: map[net.Listener]bool{}, conns: map[net.Conn]bool{}, links: map[*link]bool{}, flows: map[*flow]bool{},
	}
	ks, err := p.parse(cfg.Credentials)
	if err != nil {
		return nil, err
	}
	if rules.HasRequests() && cfg.Authority == nil {
		return nil, errNoAuthority
	}
	p.rules.Store(rules)
	cutDenied := func() { p.cut(func(*link) bool { return false }) }
	p.Learner.Ended = cutDenied
	p.Approvals = Approvals{asked: cfg.Asked, rejects: cutDenied, wait: cfg.AskWait, open: map[target]*question{}}
	p.keys.Store(&ks)
	p.up.Rate, p.down.Rate = max(0, cfg.Bandwidth), max(0, cfg.Bandwidth)
	p.life, p.cancel = context.WithCancel(context.Background())
	p.plain = newTransport(p.dialPlain)
	p.peers = peers{p: p}
	p.peers.plain = newTransport(p.peers.dialPlain)
	return p, nil
}

// newTransport returns a transport for plain requests.
func newTransport(dial func(ctx context.Context, network, addr string) (net.Conn, error)) *http.Transport {
	return &http.Transport{
		DialContext:            dial,
		MaxIdleConns:           32,
		IdleConnTimeout:        30 * time.Second,
		MaxResponseHeaderBytes: 256 << 10,
		DisableCompression:     true,
	}
}

// Set replaces the rules and closes connections that they do not allow.
func (p *Proxy) Set(n sandbox.Network) error {
	rules, err := Parse(n)
	if err != nil {
		return err
	}
	if rules.HasRequests() && p.cfg.Authority == nil {
		return errNoAuthority
	}
	p.mu.Lock()
	old := p.rules.Swap(rules)
	p.mu.Unlock()
	p.Approvals.reset(rules)
	p.cut(func(l *link) bool { return old.reads(l.host, l.port) || rules.reads(l.host, l.port) })
	return nil
}

var errNoAuthority = errors.New("rules with a method or path require a certificate authority that sandboxes trust")

// cut closes connections that are no longer allowed, and those that also selects.
func (p *Proxy) cut(also func(*link) bool) {
	p.mu.Lock()
	rules := p.rules.Load()
	var cut []*link
	for l := range p.links {
		if l.private {
			continue // no rule applies to it
		}
		ip, _ := netip.ParseAddr(l.address())
		_, err := p.decide(l.host, l.port)
		if isUnmatched(err) && rules.mode == sandbox.NetworkAsk && p.Approvals.wasApproved(l.host, l.port) {
			err = nil
		}
		if err != nil || rules.AllowAt(l.host, ip, l.port) != nil || !l.inspected && l.mustProve() || also(l) {
			cut = append(cut, l)
		}
	}
	p.mu.Unlock()
	for _, l := range cut {
		l.Conn.Close()
	}
	p.plain.CloseIdleConnections()
}

// Records returns recent connections and refusals, oldest first.
func (p *Proxy) Records() []Record { return p.ring.list() }

// Serve serves l until the proxy is closed or l fails, and closes l. It may be
// called again with another listener.
func (p *Proxy) Serve(l net.Listener) error {
	defer l.Close()
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return net.ErrClosed
	}
	p.lists[l] = true
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		delete(p.lists, l)
		p.mu.Unlock()
	}()
	take := takerOf(l)
	for pause := time.Duration(0); ; {
		c, err := l.Accept()
		if err == nil {
			pause = 0
			p.admit(c, take)
			continue
		}
		// Out of descriptors, for example: the listener still works, so retry.
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

// startHTTP starts the HTTP servers; p.mu is held.
func (p *Proxy) startHTTP() {
	p.funnel = &funnel{conns: make(chan net.Conn), done: p.life.Done()}
	forward := &httputil.ReverseProxy{
		Rewrite:       rewrite,
		Transport:     tripper(p.roundTrip),
		FlushInterval: -1,
		ErrorHandler:  p.handleError,
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

// admit serves a connection unless the limit is reached.
func (p *Proxy) admit(c net.Conn, take taker) {
	p.mu.Lock()
	if p.closed || len(p.conns) >= p.cfg.MaxConns {
		p.mu.Unlock()
		c.Close()
		return
	}
	if p.server == nil { // started on demand: most of thousands of sandboxes never connect
		p.startHTTP()
	}
	t := &tracked{Conn: c, p: p, take: take}
	p.conns[t] = true
	p.work.Add(1)
	p.mu.Unlock()
	go func() {
		defer p.work.Done()
		p.detectProtocol(t)
	}()
}

// begin registers a request that Close waits for. It returns false after Close.
func (p *Proxy) begin() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.work.Add(1)
	return true
}

// detectProtocol serves a client by the protocol that its first byte indicates.
func (p *Proxy) detectProtocol(c *tracked) {
	c.SetDeadline(time.Now().Add(helloTimeout))
	var first [1]byte
	if _, err := c.Conn.Read(first[:]); err != nil {
		c.Close()
		return
	}
	if first[0] == socks.Version {
		defer c.Close()
		p.serveSOCKS(c)
		return
	}
	if first[0] == outbound.Magic {
		defer c.Close()
		c.serveOutbound()
		return
	}
	c.SetDeadline(time.Time{})
	c.peeked = first[:]
	if !p.funnel.serve(c) {
		c.Close()
	}
}

// Done is closed when the proxy is closed.
func (p *Proxy) Done() <-chan struct{} { return p.life.Done() }

// Close closes all connections and waits until they have ended.
func (p *Proxy) Close() error {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		p.work.Wait()
		return nil
	}
	p.closed = true
	p.cancel()
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
	p.Approvals.close()
	for _, c := range open {
		c.Close()
	}
	if server != nil {
		server.Close()
		within.Close()
	}
	p.Learner.Stop()
	p.plain.CloseIdleConnections()
	p.peers.plain.CloseIdleConnections()
	p.work.Wait()
	return nil
}
