package egress

import (
	"bufio"
	"errors"
	"io"
	"net"
	"sync"
	"syscall"
)

// temporary reports whether an error of Accept is worth a retry.
func temporary(err error) bool {
	for _, e := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.ECONNABORTED} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// tracked is a client's connection, which is registered until it is closed.
type tracked struct {
	net.Conn
	p      *Proxy
	take   taker
	peeked []byte // returned by the next Read
	once   sync.Once
}

func (c *tracked) Read(b []byte) (int, error) {
	if len(c.peeked) > 0 {
		n := copy(b, c.peeked)
		c.peeked = c.peeked[n:]
		return n, nil
	}
	return c.Conn.Read(b)
}

func (c *tracked) Close() error {
	c.once.Do(func() {
		c.p.mu.Lock()
		delete(c.p.conns, c)
		c.p.mu.Unlock()
	})
	return c.Conn.Close()
}

// link is an outgoing connection. A change of the rules can close it.
type link struct {
	net.Conn
	p    *Proxy
	host string
	port int
	once sync.Once
	done chan struct{} // closed with it

	private bool // to a peer

	// Guarded by the proxy.
	raw       bool // forwarded unchanged
	inspected bool // everything that is sent is proven to be for the host
}

func (l *link) Read(b []byte) (int, error) {
	n, err := throttled{l}.Read(b)
	l.p.received.Add(int64(n))
	return n, err
}

func (l *link) Write(b []byte) (int, error) {
	n, err := throttled{l}.Write(b)
	l.p.sent.Add(int64(n))
	return n, err
}

// throttled is a link with a bandwidth limit and without counters.
type throttled struct{ *link }

func (l throttled) Read(b []byte) (int, error) {
	n, err := l.Conn.Read(l.p.down.Cut(b))
	if !l.p.down.Wait(l.done, n) {
		return n, net.ErrClosed
	}
	return n, err
}

func (l throttled) Write(b []byte) (int, error) {
	for written := 0; ; {
		part := l.p.up.Cut(b[written:])
		if !l.p.up.Wait(l.done, len(part)) {
			return written, net.ErrClosed
		}
		n, err := l.Conn.Write(part)
		if written += n; err != nil || written == len(b) {
			return written, err
		}
	}
}

// CloseWrite ends the direction to the server.
func (l throttled) CloseWrite() error {
	half, ok := l.Conn.(interface{ CloseWrite() error })
	if !ok {
		return errors.ErrUnsupported
	}
	return half.CloseWrite()
}

// track registers an outgoing connection. It returns nil if the rules have changed
// since it was allowed, or the proxy was closed.
func (p *Proxy) track(c net.Conn, host string, port int) *link {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, err := p.decide(host, port); p.closed || err != nil {
		return nil
	}
	l := &link{Conn: c, p: p, host: host, port: port, inspected: true, done: make(chan struct{})}
	p.links[l] = true
	return l
}

func (l *link) Close() error {
	l.once.Do(func() {
		l.p.mu.Lock()
		delete(l.p.links, l)
		l.p.mu.Unlock()
		close(l.done)
	})
	return l.Conn.Close()
}

// funnel is the listener of an http.Server for connections accepted elsewhere.
type funnel struct {
	conns chan net.Conn
	done  <-chan struct{}
}

func (f *funnel) serve(c net.Conn) bool {
	select {
	case f.conns <- c:
		return true
	case <-f.done:
		return false
	}
}

func (f *funnel) Accept() (net.Conn, error) {
	select {
	case c := <-f.conns:
		return c, nil
	case <-f.done:
		return nil, net.ErrClosed
	}
}

func (f *funnel) Close() error   { return nil }
func (f *funnel) Addr() net.Addr { return &net.UnixAddr{Name: "egress", Net: "unix"} }

// join copies both ways until both directions have ended or one fails, and closes
// both connections. It returns the number of bytes sent and received.
func join(client net.Conn, early *bufio.Reader, remote net.Conn) (up, down int64) {
	var wait sync.WaitGroup
	wait.Go(func() {
		var err error
		up, err = copyUp(client, early, remote)
		finish(client, remote, err)
	})
	wait.Go(func() {
		var err error
		down, err = io.Copy(bare(client), bare(remote))
		finish(remote, client, err)
	})
	wait.Wait()
	client.Close()
	remote.Close()
	return up, down
}

// bare returns the underlying connection, for which the kernel can copy, or a throttled link.
func bare(c net.Conn) net.Conn {
	switch c := c.(type) {
	case *tracked:
		if len(c.peeked) > 0 {
			return c
		}
		return c.Conn
	case *link:
		if c.p.cfg.Bandwidth > 0 {
			return throttled{c}
		}
		if inner, ok := c.Conn.(interface{ NetConn() net.Conn }); ok && c.private {
			return inner.NetConn()
		}
		return c.Conn
	}
	return c
}

// finish ends the direction to a connection. After a failure it closes both connections.
func finish(from, to net.Conn, err error) {
	half, ok := bare(to).(interface{ CloseWrite() error })
	if err != nil || !ok || half.CloseWrite() != nil {
		from.Close()
		to.Close()
	}
}
