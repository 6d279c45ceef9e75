package outbound

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/cove-sandbox/cove/internal/network/socks"
)

// Hub is the egress proxy of a hub.
type Hub struct {
	Path string // of its Unix socket
	// Patience is how long a request waits while the hub restarts.
	Patience time.Duration
	// Copies says that the proxy takes no descriptors, so that this side copies the data of connections.
	Copies bool
	// Open, if not nil, opens connections to the proxy instead of Path. They can end one direction. Copies is required.
	Open func(context.Context) (net.Conn, error)
}

// Lookup returns nil if a name exists and may be used.
func (h *Hub) Lookup(ctx context.Context, name string) error {
	c, err := h.send(ctx, Request{Kind: Lookup, Host: name})
	if err != nil {
		return err
	}
	defer c.Close()
	return c.Result(ctx)
}

// Connect requests a connection.
func (h *Hub) Connect(ctx context.Context, host string, port int, program string) (*Connection, error) {
	kind := Connect
	if h.Copies {
		kind = Stream
	}
	return h.send(ctx, Request{Kind: kind, Host: host, Port: port, Program: program})
}

func (h *Hub) send(ctx context.Context, r Request) (*Connection, error) {
	b, err := r.marshal()
	if err != nil {
		return nil, err
	}
	c, err := h.dial(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := c.Write(b); err != nil {
		c.Close()
		return nil, err
	}
	return &Connection{c: c, copies: h.Copies}, nil
}

// dial connects to the proxy. It retries while the hub restarts, so that programs do not notice.
func (h *Hub) dial(ctx context.Context) (net.Conn, error) {
	if h.Open != nil {
		return h.Open(ctx)
	}
	var d net.Dialer
	deadline := time.Now().Add(h.Patience)
	for wait := 20 * time.Millisecond; ; wait = min(2*wait, 500*time.Millisecond) {
		c, err := d.DialContext(ctx, "unix", h.Path)
		if err == nil {
			return c, nil
		}
		absent := errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ECONNREFUSED)
		if !absent || time.Now().Add(wait).After(deadline) {
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(wait):
		}
	}
}

// Connection is a request that the proxy is serving.
type Connection struct {
	c      net.Conn
	copies bool
	result error
	ended  bool
}

// Admission waits until the rules have decided. It returns nil if they allow the connection.
func (c *Connection) Admission(ctx context.Context) error {
	code, err := c.reply(ctx)
	if err != nil || code == Admitted {
		return err
	}
	c.ended, c.result = true, failure(code)
	return c.result
}

// Result waits until the proxy is connected. It returns a RefusedError if it cannot connect.
func (c *Connection) Result(ctx context.Context) error {
	for !c.ended {
		code, err := c.reply(ctx)
		if err != nil {
			return err
		}
		if code != Admitted {
			c.ended, c.result = true, failure(code)
		}
	}
	return c.result
}

func failure(code byte) error {
	if socks.Reply(code) == socks.OK {
		return nil
	}
	return &RefusedError{socks.Reply(code)}
}

// reply reads one reply.
func (c *Connection) reply(ctx context.Context) (byte, error) {
	stop := context.AfterFunc(ctx, func() { c.c.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	var code [1]byte
	if _, err := io.ReadFull(c.c, code[:]); err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return 0, err
	}
	return code[0], nil
}

// Give passes the open connection of a program to the proxy, which then connects both. If the proxy takes no descriptors, Give
// copies data in the background until both have ended. It takes ownership of the descriptor.
func (c *Connection) Give(fd int) error {
	if c.copies {
		return c.copy(fd)
	}
	defer syscall.Close(fd)
	_, _, err := c.c.(*net.UnixConn).WriteMsgUnix([]byte{Magic}, syscall.UnixRights(fd), nil)
	return err
}

// copy copies data in the background, and closes both connections.
func (c *Connection) copy(fd int) error {
	f := os.NewFile(uintptr(fd), "connection")
	conn, err := net.FileConn(f) // a copy
	f.Close()
	if err != nil {
		return err
	}
	program, hub := conn.(half), c.c.(half)
	c.c = nil
	go func() {
		done := make(chan struct{})
		go func() {
			defer close(done)
			copyHalf(hub, program)
		}()
		copyHalf(program, hub)
		<-done
		program.Close()
		hub.Close()
	}()
	return nil
}

// half is a connection that can end one direction.
type half interface {
	net.Conn
	CloseWrite() error
}

// copyHalf copies one direction and ends it. A failure ends both directions.
func copyHalf(to, from half) {
	if _, err := io.Copy(to, from); err != nil || to.CloseWrite() != nil {
		to.Close()
		from.Close()
	}
}

// Close closes the connection to the proxy.
func (c *Connection) Close() error {
	if c.c == nil { // it is copied
		return nil
	}
	return c.c.Close()
}
