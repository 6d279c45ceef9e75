package outlet

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
	"time"
)

const (
	// socksVersion is the first byte of a client that speaks SOCKS5.
	socksVersion = 5
	// farewell bounds how long a client is given to take in why there is no way out.
	farewell = 2 * time.Second
)

// accept takes connections until the listener is closed.
func (o *Outlet) accept(l net.Listener) {
	for {
		c, err := l.Accept()
		switch {
		case err == nil:
			o.admit(c)
		case o.life.Err() != nil:
			return
		default:
			// Out of descriptors: the listener is fine, and time will tell.
			o.cfg.Log.Warn("the way out takes no connection", "error", err)
			if !o.pause(time.Second) {
				return
			}
		}
	}
}

// pause waits; false when the outlet was closed meanwhile.
func (o *Outlet) pause(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-o.life.Done():
		return false
	case <-t.C:
		return true
	}
}

// admit takes a connection, unless there are too many.
func (o *Outlet) admit(c net.Conn) {
	o.mu.Lock()
	full := len(o.conns) >= o.cfg.MaxConns
	if o.closed || full {
		o.mu.Unlock()
		c.Close()
		if full {
			o.cfg.Log.Warn("the way out is full", "connections", o.cfg.MaxConns)
		}
		return
	}
	o.conns[c] = true
	o.work.Add(1)
	o.mu.Unlock()
	go func() {
		defer o.work.Done()
		defer o.forget(c)
		o.serve(c)
	}()
}

// forget lets go of a client's connection. Close closes those that are known; what they are joined to ends with them.
func (o *Outlet) forget(c net.Conn) {
	o.mu.Lock()
	delete(o.conns, c)
	o.mu.Unlock()
	c.Close()
}

// serve joins a client to the way out.
func (o *Outlet) serve(client net.Conn) {
	far, err := o.dial()
	if err != nil {
		if o.life.Err() == nil {
			o.cfg.Log.Warn("the way out does not answer", "error", err)
			explain(client)
		}
		return
	}
	join(client, far)
}

// dial connects to where the way out begins. While a hub is being restarted nobody is
// there, which programs inside need not notice.
func (o *Outlet) dial() (net.Conn, error) {
	var d net.Dialer
	deadline := time.Now().Add(o.cfg.Patience)
	for wait := 20 * time.Millisecond; ; wait = min(2*wait, 500*time.Millisecond) {
		c, err := d.DialContext(o.life, o.network, o.address)
		if err == nil {
			return c, nil
		}
		absent := errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ECONNREFUSED)
		if !absent || time.Now().Add(wait).After(deadline) || !o.pause(wait) {
			return nil, err
		}
	}
}

// explain tells a client that speaks HTTP why nothing comes of it. One that
// speaks SOCKS hears that the server has failed.
func explain(c net.Conn) {
	c.SetDeadline(time.Now().Add(farewell))
	var first [1]byte
	if _, err := io.ReadFull(c, first[:]); err != nil {
		return
	}
	if first[0] == socksVersion {
		return
	}
	const why = "cove: the way out of this sandbox does not answer; its hub may be starting again, so try again soon\n"
	fmt.Fprintf(c, "HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: %d\r\nRetry-After: 5\r\nConnection: close\r\n\r\n%s", len(why), why)
	// What the client still sends is read, or the reset would destroy the answer.
	if half, ok := c.(*net.TCPConn); ok && half.CloseWrite() == nil {
		io.CopyN(io.Discard, c, 64<<10)
	}
}

// join copies both ways until both sides have said all, or one fails, and closes
// both. Each direction ends on its own: many protocols end one first.
func join(client, far net.Conn) {
	var wait sync.WaitGroup
	pass := func(to, from net.Conn) {
		_, err := io.Copy(to, from)
		half, ok := to.(interface{ CloseWrite() error })
		if err != nil || !ok || half.CloseWrite() != nil {
			to.Close()
			from.Close()
		}
	}
	wait.Go(func() { pass(far, client) })
	wait.Go(func() { pass(client, far) })
	wait.Wait()
	client.Close()
	far.Close()
}
