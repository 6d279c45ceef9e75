package egress

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"strconv"
	"strings"
	"sync"
	"time"
)

// flow is something open that carries credentials: a tunnel that is looked into,
// or a request over plain HTTP. It is cut when one of them is taken away.
type flow struct {
	host   string
	port   int
	secure bool
	cut    func()

	// Guarded by the proxy.
	keys keys
	over bool
}

// SetCredentials replaces the credentials. Requests from now on carry the new
// ones. What is open and carries one that was taken away or changed is cut, and so
// are tunnels that were not looked into and from now on would be.
func (p *Proxy) SetCredentials(list []Credential) error {
	next, err := p.parse(list)
	if err != nil {
		return err
	}
	p.mu.Lock()
	old := *p.keys.Swap(&next)
	var cut []func()
	for f := range p.flows {
		if !next.match(f.host, f.port, f.secure).include(f.keys) {
			cut = append(cut, f.cut)
		}
	}
	for l := range p.links {
		if l.raw && next.any(l.host, l.port) && !old.any(l.host, l.port) {
			cut = append(cut, func() { l.Conn.Close() })
		}
	}
	p.mu.Unlock()
	for _, f := range cut {
		f()
	}
	return nil
}

func (p *Proxy) parse(list []Credential) (keys, error) {
	ks, err := parseCredentials(list)
	if err == nil && len(ks) > 0 && p.cfg.Authority == nil {
		err = errors.New("credentials need an authority that sandboxes trust")
	}
	return ks, err
}

// carry returns what a request of a flow has to carry, and enters the flow.
func (p *Proxy) carry(f *flow) keys {
	p.mu.Lock()
	defer p.mu.Unlock()
	f.keys = p.keys.Load().match(f.host, f.port, f.secure)
	if len(f.keys) > 0 && !f.over {
		p.flows[f] = true
	}
	return f.keys
}

func (p *Proxy) leave(f *flow) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f.over = true
	delete(p.flows, f)
}

// pass connects a client with what it asked for, until both are done.
func (p *Proxy) pass(client net.Conn, early *bufio.Reader, far *link, rec *Record) {
	if !p.keep(far, false) {
		client.SetReadDeadline(time.Now().Add(helloTimeout))
		first, err := early.Peek(1)
		if err != nil {
			client.Close()
			far.Close()
			p.ring.end(rec, 0, 0)
			return
		}
		client.SetReadDeadline(time.Time{})
		const handshake = 22 // of TLS
		f := &flow{host: far.host, port: far.port, secure: first[0] == handshake, cut: func() { client.Close() }}
		if len(p.carry(f)) > 0 {
			defer p.leave(f)
			p.broker(client, early, far, f, rec)
			return
		}
		p.keep(far, true)
	}
	up, down := join(client, early, far)
	p.sent.Add(up)
	p.received.Add(down)
	p.ring.end(rec, up, down)
}

// keep marks a connection as one that is passed on as it is, unless there are
// credentials for it.
func (p *Proxy) keep(l *link, anyway bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	l.raw = anyway || !p.keys.Load().any(l.host, l.port)
	return l.raw
}

// tunnel is a connection of a client that takes the proxy for the host.
type tunnel struct {
	net.Conn // what is inside
	flow     *flow
	out      *http.Transport
	once     sync.Once
	done     chan struct{}

	mu    sync.Mutex
	first *link // connected already, for the first request
}

func (t *tunnel) Close() error {
	err := t.Conn.Close()
	t.once.Do(func() { close(t.done) })
	return err
}

func (t *tunnel) take() *link {
	t.mu.Lock()
	defer t.mu.Unlock()
	l := t.first
	t.first = nil
	return l
}

// broker stands in for the host, and passes each request on with what it has to
// carry.
func (p *Proxy) broker(client net.Conn, early *bufio.Reader, far *link, f *flow, rec *Record) {
	inside := &metered{Conn: client, early: early}
	t := &tunnel{Conn: inside, flow: f, first: far, done: make(chan struct{})}
	t.out = p.outbound(t)
	defer func() {
		client.Close()
		if l := t.take(); l != nil {
			l.Close()
		}
		t.out.CloseIdleConnections()
		p.ring.end(rec, inside.up.Load(), inside.down.Load())
	}()
	p.ring.change(rec, func() { rec.Brokered = true })
	if f.secure {
		secured, err := p.secure(inside, f.host)
		if err != nil {
			// Most often the program does not trust the authority.
			p.cfg.Log.Debug("a program broke off the handshake with a brokered host", "host", f.host, "error", err)
			p.ring.change(rec, func() { rec.Reason = err.Error() })
			return
		}
		t.Conn = secured
	}
	if p.inner.give(t) {
		<-t.done
	}
}

// secure speaks TLS with a client in the name of a host.
func (p *Proxy) secure(c net.Conn, host string) (net.Conn, error) {
	cfg, err := p.cfg.Authority.config(host)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(p.life, helloTimeout)
	defer cancel()
	s := tls.Server(c, cfg)
	if err := s.HandshakeContext(ctx); err != nil {
		return nil, err
	}
	return s, nil
}

// outbound makes the way from a tunnel to its host: as the client has one
// connection, there is one to the host.
func (p *Proxy) outbound(t *tunnel) *http.Transport {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		if l := t.take(); l != nil {
			return l, nil
		}
		l, err := p.dial(ctx, t.flow.host, t.flow.port, &Record{})
		if err != nil {
			return nil, err
		}
		return l, nil
	}
	return &http.Transport{
		DialContext: dial,
		DialTLSContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := dial(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			ctx, cancel := context.WithTimeout(ctx, dialTimeout)
			defer cancel()
			s := tls.Client(c, &tls.Config{ServerName: t.flow.host, RootCAs: p.cfg.Roots, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}})
			if err := s.HandshakeContext(ctx); err != nil {
				c.Close()
				return nil, err
			}
			return s, nil
		},
		MaxIdleConns:           1,
		IdleConnTimeout:        innerIdle,
		MaxResponseHeaderBytes: 256 << 10,
		DisableCompression:     true,
	}
}

type tunnelKey struct{}

// inside answers the requests in a tunnel.
func (p *Proxy) inside(forward http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !p.begin() {
			panic(http.ErrAbortHandler)
		}
		defer p.work.Done()
		t := r.Context().Value(tunnelKey{}).(*tunnel)
		f := t.flow
		if !f.addressed(r) {
			// Servers that share an address would give it to another of them.
			w.Header().Set("Connection", "close")
			refuse(w, http.StatusMisdirectedRequest, "this connection is to "+f.authority()+", and the request is for another host; open another connection for that")
			return
		}
		ks := p.carry(f)
		if len(ks) == 0 {
			panic(http.ErrAbortHandler) // taken away just now
		}
		if echoes(w, r) {
			return
		}
		u := *r.URL
		u.Scheme, u.Host, u.User = f.scheme(), net.JoinHostPort(f.host, strconv.Itoa(f.port)), nil
		out := r.WithContext(context.WithValue(r.Context(), callKey{}, &call{judged: true, keys: ks, tunnel: t}))
		out.URL, out.Host = &u, f.authority()
		// A server may answer while it is still being told.
		http.NewResponseController(w).EnableFullDuplex()
		untouched(w.Header())
		forward.ServeHTTP(w, out)
	})
}

// echoes refuses a method whose answer is the request, with all its headers.
func echoes(w http.ResponseWriter, r *http.Request) bool {
	if r.Method != "TRACE" && r.Method != "TRACK" && r.Method != http.MethodConnect {
		return false
	}
	refuse(w, http.StatusMethodNotAllowed, r.Method+" is not passed on to a host that credentials are added for")
	return true
}

func (f *flow) scheme() string {
	if f.secure {
		return "https"
	}
	return "http"
}

// authority is the host as a Host header has it.
func (f *flow) authority() string {
	if f.port == standard(f.secure) {
		return f.host
	}
	return net.JoinHostPort(f.host, strconv.Itoa(f.port))
}

// addressed tells whether a request is for the host that the tunnel leads to.
func (f *flow) addressed(r *http.Request) bool {
	if r.URL.Host != "" && r.URL.Scheme != f.scheme() {
		return false
	}
	host, port, given := strings.Cut(r.Host, ":")
	name, err := CleanName(host)
	return err == nil && name == f.host && (!given || port == strconv.Itoa(f.port))
}

// roundTrip sends a request on its way, after all that others may do to it.
func (p *Proxy) roundTrip(r *http.Request) (*http.Response, error) {
	c, ok := r.Context().Value(callKey{}).(*call)
	if !ok || len(c.keys) == 0 {
		return p.plain.RoundTrip(r)
	}
	r = r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{
		Got1xxResponse: func(_ int, h textproto.MIMEHeader) error { c.keys.scrub(h); return nil },
	}))
	p.brokered.Add(1)
	out := p.plain
	if c.tunnel != nil {
		out = c.tunnel.out
	}
	res, err := out.RoundTrip(r)
	if err != nil {
		return nil, discreet(err)
	}
	c.keys.scrub(res.Header)
	if res.StatusCode != http.StatusSwitchingProtocols {
		res.Body = &guarded{res.Body, res, c.keys}
	}
	return res, nil
}

// guarded is a body whose trailers and failures tell nothing that the server was
// told. The body itself passes as it is.
type guarded struct {
	io.ReadCloser
	res  *http.Response
	keys keys
}

func (g *guarded) Read(b []byte) (int, error) {
	n, err := g.ReadCloser.Read(b)
	switch {
	case errors.Is(err, io.EOF):
		g.keys.scrub(g.res.Trailer)
	case err != nil:
		err = discreet(err)
	}
	return n, err
}

// discreet is a failure without anything that a server has said, which may be
// what it was told.
func discreet(err error) error {
	if Denied(err) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	if e, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return e
	}
	if e, ok := errors.AsType[*net.OpError](err); ok {
		return e
	}
	if e, ok := errors.AsType[*net.DNSError](err); ok {
		return e
	}
	return errors.New("the server closed the connection, or its answer could not be read")
}
