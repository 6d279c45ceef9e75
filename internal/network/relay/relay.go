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
	// Unavailable is the error while the egress proxy does not respond.
	Unavailable = "the egress proxy of this sandbox does not respond: the hub may be restarting; retry in a few seconds"
	// replyTime bounds how long a client may take to read an error.
	replyTime = 2 * time.Second
)

// accept accepts connections until the listener is closed.
func (r *Relay) accept(l net.Listener) {
	for {
		c, err := l.Accept()
		switch {
		case err == nil:
			r.admit(c)
		case r.life.Err() != nil:
			return
		default:
			// The process may be out of file descriptors: the listener still works, so retry.
			r.cfg.Log.Warn("cannot accept relay connection", "error", err)
			if !r.pause(time.Second) {
				return
			}
		}
	}
}

// pause waits, and returns false if the relay was closed meanwhile.
func (r *Relay) pause(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-r.life.Done():
		return false
	case <-t.C:
		return true
	}
}

// admit serves a connection unless the limit is reached.
func (r *Relay) admit(c net.Conn) {
	r.mu.Lock()
	full := len(r.conns) >= r.cfg.MaxConns
	if r.closed || full {
		r.mu.Unlock()
		c.Close()
		if full {
			r.cfg.Log.Warn("relay connection limit reached", "limit", r.cfg.MaxConns)
		}
		return
	}
	r.conns[c] = true
	r.work.Add(1)
	r.mu.Unlock()
	go func() {
		defer r.work.Done()
		defer r.forget(c)
		r.serve(c)
	}()
}

// forget closes a client's connection and removes it from those that Close closes.
func (r *Relay) forget(c net.Conn) {
	r.mu.Lock()
	delete(r.conns, c)
	r.mu.Unlock()
	c.Close()
}

// serve passes a client to the handler, or connects it to the egress proxy.
func (r *Relay) serve(client net.Conn) {
	if handle := r.handler.Load(); handle != nil {
		(*handle)(client)
		return
	}
	if r.network == "" {
		return
	}
	remote, err := r.Dial(r.life)
	if err != nil {
		if r.life.Err() == nil {
			r.cfg.Log.Warn("egress proxy does not respond", "error", err)
			writeUnavailable(client)
		}
		return
	}
	Forward(client, remote)
}

// Dial connects to the egress proxy. It retries while the hub restarts, so that programs in the sandbox do not notice.
func (r *Relay) Dial(ctx context.Context) (net.Conn, error) {
	var d net.Dialer
	deadline := time.Now().Add(r.cfg.Patience)
	for wait := 20 * time.Millisecond; ; wait = min(2*wait, 500*time.Millisecond) {
		c, err := d.DialContext(ctx, r.network, r.address)
		if err == nil {
			return c, nil
		}
		absent := errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ECONNREFUSED)
		if !absent || time.Now().Add(wait).After(deadline) || !r.pause(wait) {
			return nil, err
		}
	}
}

// writeUnavailable sends an error to a client that speaks HTTP. SOCKS clients only see the connection close.
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
	// Read what the client still sends; otherwise a reset could discard the response.
	if half, ok := c.(*net.TCPConn); ok && half.CloseWrite() == nil {
		_, _ = io.CopyN(io.Discard, c, 64<<10)
	}
}

// Forward copies in both directions until both have ended or one fails, and closes both connections. The directions end
// independently: many protocols end one first.
func Forward(client, remote net.Conn) {
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
