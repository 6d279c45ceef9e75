package egress

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/cove-sandbox/cove/internal/network/outbound"
	"github.com/cove-sandbox/cove/internal/network/socks"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// taker receives the connection of a program from the first process of its sandbox. It refuses all other senders: they could
// keep a copy of the descriptor and make it block.
type taker func(c net.Conn) (net.Conn, error)

// takerOf returns the taker of a listener; nil if it has none.
func takerOf(l net.Listener) taker {
	if t, ok := l.(interface {
		TakeSocket(net.Conn) (net.Conn, error)
	}); ok {
		return t.TakeSocket
	}
	return nil
}

// serveOutbound serves a request of package outbound whose first byte has been read. The caller closes the connection.
func (c *tracked) serveOutbound() {
	req, err := outbound.Read(c.Conn)
	switch {
	case err != nil:
	case req.Kind == outbound.Lookup:
		_, _ = c.Write([]byte{byte(c.p.lookup(req.Host))})
	case req.Kind == outbound.Connect && c.take == nil:
		_, _ = c.Write([]byte{byte(socks.UnknownCommand)})
	default:
		c.connectOutbound(req)
	}
}

// lookup reports whether a name exists and may be used. It records a refusal: the program will not try to connect.
func (p *Proxy) lookup(target string) socks.Reply {
	rec := &Record{Time: time.Now(), Protocol: "dns", Host: printable(target), Port: anyPort}
	host, err := CleanName(target)
	if err != nil {
		return socks.Denied
	}
	if p.peers.has(host) {
		return socks.OK
	}
	asks, err := p.permitName(host)
	if asks {
		return socks.OK // not looked up: a name without approval must not leave the sandbox
	}
	if err == nil {
		if _, err = p.dialer.resolve(p.life, host); err == nil {
			return socks.OK
		}
	}
	p.record(rec, err)
	return socksCode(err)
}

func (c *tracked) connectOutbound(req outbound.Request) {
	p := c.p
	port := strconv.Itoa(req.Port)
	rec := &Record{Time: time.Now(), Protocol: "tcp", Host: printable(req.Host), Port: req.Port, Program: printable(req.Program)}
	if host, n, err := split(req.Host, port); err == nil && (p.peers.has(host) || p.admits(host, n)) {
		if _, err := c.Write([]byte{outbound.Admitted}); err != nil {
			return
		}
	}
	remote, err := p.open(p.life, req.Host, port, rec)
	p.record(rec, err)
	if err != nil {
		_, _ = c.Write([]byte{byte(socksCode(err))})
		return
	}
	client := c
	if _, err = c.Write([]byte{byte(socks.OK)}); err == nil && req.Kind == outbound.Connect {
		client, err = c.takeClient()
		c.Close()
	}
	if err != nil {
		remote.Close()
		p.ring.end(rec, 0, 0)
		return
	}
	defer client.Close()
	client.SetDeadline(time.Time{})
	p.relay(client, bufio.NewReader(client), remote, rec)
}

// takeClient receives the connection of a program.
func (c *tracked) takeClient() (*tracked, error) {
	p := c.p
	c.SetDeadline(time.Now().Add(helloTimeout))
	conn, err := c.take(c.Conn)
	if err != nil {
		return nil, err
	}
	client := &tracked{Conn: conn, p: p}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		conn.Close()
		return nil, context.Canceled
	}
	p.conns[client] = true
	return client, nil
}

// admits reports whether a connection is allowed, or may wait for approval.
func (p *policy) admits(host string, port int) bool {
	_, err := p.decide(host, port)
	return err == nil || p.rules.Load().askable(host, err)
}

// permitName returns an error if no connection to a name is allowed, on any port. With asks, a connection may wait for approval.
func (p *policy) permitName(name string) (asks bool, err error) {
	if err = p.rules.Load().allowName(name); isUnmatched(err) && p.Learner.Open() {
		return false, nil
	}
	return p.rules.Load().askable(name, err), err
}

// allowName returns an error if the rules allow no connection to a name, on any port.
func (r *Rules) allowName(name string) error {
	if r.mode == sandbox.NetworkOpen || !r.lists() {
		return r.Allow(name, anyPort)
	}
	requests := len(r.texts) // position of the first rule that allows requests to the name
	for _, q := range r.requests {
		if !q.place.deny && q.matches(name) {
			requests = min(requests, q.place.index)
		}
	}
	denied := map[int]bool{} // ports of earlier rules
	for _, n := range r.names {
		switch {
		case !n.matches(name):
		case n.place.index > requests:
			return nil
		case n.place.deny && n.port == 0:
			return r.denyBy(n.place, name)
		case n.place.deny:
			denied[n.port] = true
		case n.port == 0 || !denied[n.port]:
			return nil
		}
	}
	if requests < len(r.texts) {
		return nil
	}
	return unmatched(name, anyPort, fmt.Sprintf("its egress policy is %s, and none of its %d rules matches", r.mode, len(r.texts)))
}

const anyPort = 443 // in the advice for a name whose port is not known yet
