package egress

import (
	"context"
	"net"
	"net/http"
)

// Peer is another sandbox that a name of a private network stands for. Rules, credentials and inspection do not apply to it.
type Peer struct {
	// Rule names the private network in records.
	Rule string
	// Dial connects to a port of the sandbox. It closes the connection as soon as it is no longer allowed. The connection may
	// have a method NetConn, which returns the one that the kernel can copy.
	Dial func(ctx context.Context, port int) (net.Conn, error)
}

// peers connects to peers.
type peers struct {
	p     *Proxy
	plain *http.Transport // for plain requests; it shares no connection with requests to other hosts
}

// find returns the peer that a host stands for.
func (s *peers) find(ctx context.Context, host string) (Peer, bool) {
	if s.p.cfg.Peer == nil {
		return Peer{}, false
	}
	return s.p.cfg.Peer(ctx, host)
}

// has reports whether a host stands for a peer.
func (s *peers) has(host string) bool {
	_, ok := s.find(s.p.life, host)
	return ok
}

// dial connects to a port of a peer.
func (s *peers) dial(ctx context.Context, to Peer, host string, port int, rec *Record) (*link, error) {
	rec.Rule, rec.Private = to.Rule, true
	ctx, cancel := context.WithTimeout(ctx, peerTimeout)
	defer cancel()
	c, err := to.Dial(ctx, port)
	if err != nil {
		return nil, err
	}
	p := s.p
	l := &link{Conn: c, p: p, host: host, port: port, private: true, done: make(chan struct{})}
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		c.Close()
		return nil, net.ErrClosed
	}
	p.links[l] = true
	p.mu.Unlock()
	return l, nil
}

// dialPlain connects for the transport of plain requests.
func (s *peers) dialPlain(ctx context.Context, _, addr string) (net.Conn, error) {
	target, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	host, n, err := split(target, port)
	if err != nil {
		return nil, err
	}
	to, ok := s.find(ctx, host)
	if !ok {
		return nil, deny("%q is no longer in a private network of this sandbox", host)
	}
	l, err := s.dial(ctx, to, host, n, &Record{})
	if err != nil {
		return nil, err
	}
	return l, nil
}
