package relay

import (
	"context"
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
	// Unavailable is the error while the hub's proxy does not respond.
	Unavailable = "the egress proxy of this sandbox does not respond; its hub may be restarting, try again soon"
	// replyTime bounds how long a client may take to read an error.
	replyTime = 2 * time.Second
)

// accept accepts connections until the listener is closed.
func (o *Outlet) accept(l net.Listener) {
	for {
		c, err := l.Accept()
		switch {
		case err == nil:
			o.admit(c)
		case o.life.Err() != nil:
			return
		default:
			// Out of descriptors, for example: the listener still works, so retry.
			o.cfg.Log.Warn("cannot accept egress connection", "error", err)
			if !o.pause(time.Second) {
				return
			}
		}
	}
}

// pause waits, and returns false if the outlet was closed meanwhile.
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

// admit serves a connection unless the limit is reached.
func (o *Outlet) admit(c net.Conn) {
	o.mu.Lock()
	full := len(o.conns) >= o.cfg.MaxConns
	if o.closed || full {
		o.mu.Unlock()
		c.Close()
		if full {
			o.cfg.Log.Warn("egress connection limit reached", "limit", o.cfg.MaxConns)
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

// forget closes a client's connection and removes it from those that Close closes.
func (o *Outlet) forget(c net.Conn) {
	o.mu.Lock()
	delete(o.conns, c)
	o.mu.Unlock()
	c.Close()
}

// serve connects a client with the hub's proxy.
func (o *Outlet) serve(client net.Conn) {
	if handle := o.handler.Load(); handle != nil {
		(*handle)(client)
		return
	}
	if o.network == "" {
		return
	}
	remote, err := o.Dial(o.life)
	if err != nil {
		if o.life.Err() == nil {
			o.cfg.Log.Warn("egress proxy does not respond", "error", err)
			writeUnavailable(client)
		}
		return
	}
	Relay(client, remote)
}

// Dial connects to the hub's proxy. It retries while the hub restarts, so that
// programs in the sandbox do not notice.
func (o *Outlet) Dial(ctx context.Context) (net.Conn, error) {
	var d net.Dialer
	deadline := time.Now().Add(o.cfg.Patience)
	for wait := 20 * time.Millisecond; ; wait = min(2*wait, 500*time.Millisecond) {
		c, err := d.DialContext(ctx, o.network, o.address)
		if err == nil {
			return c, nil
		}
		absent := errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ECONNREFUSED)
		if !absent || time.Now().Add(wait).After(deadline) || !o.pause(wait) {
			return nil, err
		}
	}
}

// writeUnavailable sends an error to a client that speaks HTTP. SOCKS clients only
// see the connection close.
func writeUnavailable(c net.Conn) {
	c.SetDeadline(time.Now().Add(replyTime))
	var first [1]byte
	if _, err := io.ReadFull(c, first[:]); err != nil {
		return
	}
	if first[0] == socksVersion {
		return
	}
	why := "cove: " + Unavailable + "\n"
	fmt.Fprintf(c, "HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: "+
		"%d\r\nRetry-After: 5\r\nConnection: close\r\n\r\n%s", len(why), why)
	// Read what the client still sends, or a reset would discard the reply.
	if half, ok := c.(*net.TCPConn); ok && half.CloseWrite() == nil {
		io.CopyN(io.Discard, c, 64<<10)
	}
}

// Relay copies both ways until both directions have ended or one fails, and closes
// both connections. Each direction ends on its own: many protocols end one first.
func Relay(client, remote net.Conn) {
	var wait sync.WaitGroup
	forward := func(to, from net.Conn) {
		_, err := io.Copy(to, from)
		half, ok := to.(interface{ CloseWrite() error })
		if err != nil || !ok || half.CloseWrite() != nil {
			to.Close()
			from.Close()
		}
	}
	wait.Go(func() { forward(remote, client) })
	wait.Go(func() { forward(client, remote) })
	wait.Wait()
	client.Close()
	remote.Close()
}
