package egress

import (
	"bufio"
	"errors"
	"io"
	"net"
	"sync"
	"syscall"
)

// temporary tells errors of Accept that pass by themselves.
func temporary(err error) bool {
	for _, e := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.ECONNABORTED} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// tracked is a client's connection; the proxy knows it until it is closed.
type tracked struct {
	net.Conn
	p      *Proxy
	peeked []byte // read already, to be read again
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

// link is a connection to the outside. The rules can cut it.
type link struct {
	net.Conn
	p    *Proxy
	host string
	port int
	raw  bool // passed on as it is; guarded by the proxy
	once sync.Once
}

func (l *link) Read(b []byte) (int, error) {
	n, err := l.Conn.Read(b)
	l.p.received.Add(int64(n))
	return n, err
}

func (l *link) Write(b []byte) (int, error) {
	n, err := l.Conn.Write(b)
	l.p.sent.Add(int64(n))
	return n, err
}

// track enters a connection to the outside; nil when the rules have changed
// since it was allowed, or the proxy was closed.
func (p *Proxy) track(c net.Conn, host string, port int) *link {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.rules.Load().Allow(host, port) != nil {
		return nil
	}
	l := &link{Conn: c, p: p, host: host, port: port}
	p.links[l] = true
	return l
}

func (l *link) Close() error {
	l.once.Do(func() {
		l.p.mu.Lock()
		delete(l.p.links, l)
		l.p.mu.Unlock()
	})
	return l.Conn.Close()
}

// funnel hands connections that were accepted elsewhere to an http.Server.
type funnel struct {
	conns chan net.Conn
	done  <-chan struct{}
}

func (f *funnel) give(c net.Conn) bool {
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

// join copies both ways until both sides have said all, or one fails, and
// closes both. It returns how many bytes went out and came in.
func join(client net.Conn, early *bufio.Reader, far net.Conn) (up, down int64) {
	var wait sync.WaitGroup
	wait.Go(func() {
		var err error
		if early != nil && early.Buffered() > 0 {
			var n int64
			n, err = io.CopyN(bare(far), early, int64(early.Buffered()))
			up += n
		}
		if err == nil {
			var n int64
			n, err = io.Copy(bare(far), bare(client))
			up += n
		}
		finish(client, far, err)
	})
	wait.Go(func() {
		var err error
		down, err = io.Copy(bare(client), bare(far))
		finish(far, client, err)
	})
	wait.Wait()
	client.Close()
	far.Close()
	return up, down
}

// bare is the connection itself, which the kernel can copy without us.
func bare(c net.Conn) net.Conn {
	switch c := c.(type) {
	case *tracked:
		if len(c.peeked) > 0 {
			return c
		}
		return c.Conn
	case *link:
		return c.Conn
	}
	return c
}

// finish passes the end of one direction on. After a failure nothing more can
// come of the other either.
func finish(from, to net.Conn, err error) {
	half, ok := bare(to).(interface{ CloseWrite() error })
	if err != nil || !ok || half.CloseWrite() != nil {
		from.Close()
		to.Close()
	}
}
