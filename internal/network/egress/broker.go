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

	"github.com/cove-sandbox/cove/internal/network/egress/internal/clienthello"
	"github.com/cove-sandbox/cove/internal/network/egress/internal/count"
)

// flow is an open tunnel or plain HTTP request that carries credentials. It is closed
// when one of them is revoked.
type flow struct {
	host   string
	port   int
	secure bool
	broker bool // a tunnel that ends when its last credential is revoked
	cut    func()

	// Guarded by the proxy.
	keys  keys
	ended bool
}

// SetCredentials replaces the credentials for new requests. It closes open
// connections that carry a revoked or changed credential, and unbrokered
// tunnels to hosts that get a credential.
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
		err = errors.New("credentials require a certificate authority that sandboxes trust")
	}
	return ks, err
}

// attach returns the credentials of a flow's next request and registers the flow.
func (p *Proxy) attach(f *flow) keys {
	p.mu.Lock()
	defer p.mu.Unlock()
	f.keys = p.keys.Load().match(f.host, f.port, f.secure)
	if len(f.keys) > 0 && !f.ended {
		p.flows[f] = true
	}
	return f.keys
}

func (p *Proxy) detach(f *flow) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f.ended = true
	delete(p.flows, f)
}

// relay connects a client with its target until both have ended.
func (p *Proxy) relay(client net.Conn, early *bufio.Reader, remote *link, rec *Record) {
	if remote.private {
		remote.relayRaw(client, early, rec)
		return
	}
	reads := p.rules.Load().reads(remote.host, remote.port)
	if raw := p.markRaw(remote); reads || !raw {
		client.SetReadDeadline(time.Now().Add(helloTimeout))
		first, err := early.Peek(1)
		if err != nil {
			client.Close()
			remote.Close()
			p.ring.end(rec, 0, 0)
			return
		}
		client.SetReadDeadline(time.Time{})
		f := &flow{host: remote.host, port: remote.port, secure: first[0] == clienthello.Handshake, cut: func() { client.Close() }}
		f.broker = len(p.attach(f)) > 0
		if f.broker || reads {
			p.setRaw(remote, false)
			defer p.detach(f)
			p.broker(client, early, remote, f, rec)
			return
		}
		p.setRaw(remote, true)
	}
	if p.mustInspect(remote) {
		p.relayInspected(client, early, remote, rec)
		return
	}
	remote.relayRaw(client, early, rec)
}

// relayRaw connects a client with the link and forwards everything unchanged.
func (l *link) relayRaw(client net.Conn, early *bufio.Reader, rec *Record) {
	up, down := join(client, early, l)
	l.p.sent.Add(up)
	l.p.received.Add(down)
	l.p.ring.end(rec, up, down)
}

// markRaw marks a connection as forwarded unchanged, unless there are credentials
// for its host.
func (p *Proxy) markRaw(l *link) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	l.raw = !p.keys.Load().any(l.host, l.port)
	return l.raw
}

func (p *Proxy) setRaw(l *link, raw bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l.raw = raw
}

// tunnel is a connection of a client for which the proxy impersonates the host.
type tunnel struct {
	net.Conn // the decrypted connection
	flow     *flow
	out      *http.Transport
	once     sync.Once
	done     chan struct{}

	mu    sync.Mutex
	first *link // already connected, for the first request
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

// broker impersonates the host, and forwards each request with its credentials. A flow
// without credentials is plain HTTP, in which each request must be for the host.
func (p *Proxy) broker(client net.Conn, early *bufio.Reader, remote *link, f *flow, rec *Record) {
	inside := &count.Conn{Conn: client, Early: early}
	t := &tunnel{Conn: inside, flow: f, first: remote, done: make(chan struct{})}
	t.out = p.transport(t)
	defer func() {
		client.Close()
		if l := t.take(); l != nil {
			l.Close()
		}
		t.out.CloseIdleConnections()
		p.ring.end(rec, inside.Up.Load(), inside.Down.Load())
	}()
	p.ring.change(rec, func() { rec.Brokered = f.broker })
	if f.secure {
		secured, err := p.secure(inside, f.host)
		if err != nil {
			// Usually the program does not trust the authority.
			p.cfg.Log.Debug("tls handshake with client of brokered host failed", "host", f.host, "error", err)
			p.ring.change(rec, func() { rec.Reason = err.Error() })
			return
		}
		t.Conn = secured
	}
	if p.inner.serve(t) {
		<-t.done
	}
}

// secure performs the TLS handshake with a client on behalf of a host.
func (p *Proxy) secure(c net.Conn, host string) (net.Conn, error) {
	cfg, err := p.cfg.Authority.ServerConfig(host)
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

// transport returns the transport from a tunnel to its host. It uses a single
// connection, like the client.
func (p *Proxy) transport(t *tunnel) *http.Transport {
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
			s := tls.Client(c, &tls.Config{ServerName: t.flow.host, RootCAs: p.cfg.Roots,
				MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}})
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

// inside serves the requests in a tunnel.
func (p *Proxy) inside(forward http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !p.begin() {
			panic(http.ErrAbortHandler)
		}
		defer p.work.Done()
		t := r.Context().Value(tunnelKey{}).(*tunnel)
		f := t.flow
		if !f.addressed(r) {
			// A server with several hosts could serve the request for another of its hosts.
			w.Header().Set("Connection", "close")
			refuse(w, http.StatusMisdirectedRequest, "this connection is to "+f.authority()+
				" but the request is for another host; open another connection")
			return
		}
		ks := p.attach(f)
		if len(ks) == 0 && f.broker {
			panic(http.ErrAbortHandler) // revoked meanwhile
		}
		if len(ks) > 0 && refuseEcho(w, r) {
			return
		}
		if err := p.rules.Load().allowRequest(f.host, f.port, r); err != nil {
			refuseRequest(p, w, r, f.scheme(), f.host, f.port, err)
			return
		}
		u := *r.URL
		u.Scheme, u.Host, u.User = f.scheme(), net.JoinHostPort(f.host, strconv.Itoa(f.port)), nil
		out := r.WithContext(context.WithValue(r.Context(), callKey{}, &call{recorded: true, keys: ks, tunnel: t}))
		out.URL, out.Host = &u, f.authority()
		// A server may respond before it has read the whole request.
		http.NewResponseController(w).EnableFullDuplex()
		untouched(w.Header())
		forward.ServeHTTP(w, out)
	})
}

// refuseEcho refuses methods whose response contains the headers of the request.
func refuseEcho(w http.ResponseWriter, r *http.Request) bool {
	if r.Method != "TRACE" && r.Method != "TRACK" && r.Method != http.MethodConnect {
		return false
	}
	refuse(w, http.StatusMethodNotAllowed, r.Method+" is not allowed for a host with credentials")
	return true
}

func (f *flow) scheme() string {
	if f.secure {
		return "https"
	}
	return "http"
}

// authority is the value of the Host header.
func (f *flow) authority() string {
	if f.port == standard(f.secure) {
		return f.host
	}
	return net.JoinHostPort(f.host, strconv.Itoa(f.port))
}

// addressed reports whether a request is for the host of the tunnel.
func (f *flow) addressed(r *http.Request) bool {
	if r.URL.Host != "" && r.URL.Scheme != f.scheme() {
		return false
	}
	host, port, given := strings.Cut(r.Host, ":")
	name, err := CleanName(host)
	return err == nil && name == f.host && (!given || port == strconv.Itoa(f.port))
}

// roundTrip sends a request that is otherwise complete.
func (p *Proxy) roundTrip(r *http.Request) (*http.Response, error) {
	c, ok := r.Context().Value(callKey{}).(*call)
	out := p.plain
	switch {
	case ok && c.tunnel != nil:
		out = c.tunnel.out
	case ok && c.private:
		out = p.peers.plain
	}
	if !ok || len(c.keys) == 0 {
		return out.RoundTrip(r)
	}
	r = r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{
		Got1xxResponse: func(_ int, h textproto.MIMEHeader) error { c.keys.scrub(h); return nil },
	}))
	p.brokered.Add(1)
	res, err := out.RoundTrip(r)
	if err != nil {
		return nil, withoutReply(err)
	}
	c.keys.scrub(res.Header)
	if res.StatusCode != http.StatusSwitchingProtocols {
		res.Body = &scrubbedBody{res.Body, res, c.keys}
	}
	return res, nil
}

// scrubbedBody is a body whose trailers and errors never contain credentials. The
// content is forwarded unchanged.
type scrubbedBody struct {
	io.ReadCloser
	res  *http.Response
	keys keys
}

func (g *scrubbedBody) Read(b []byte) (int, error) {
	n, err := g.ReadCloser.Read(b)
	switch {
	case errors.Is(err, io.EOF):
		g.keys.scrub(g.res.Trailer)
	case err != nil:
		err = withoutReply(err)
	}
	return n, err
}

// withoutReply removes the server's text from an error, because it may
// contain credentials.
func withoutReply(err error) error {
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
	return errors.New("the server closed the connection or sent an invalid response")
}
