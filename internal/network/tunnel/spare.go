package tunnel

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"time"
)

// spareTime bounds the response to a request on a connection that was opened in advance. If the
// peer is unreachable, Dial tries a new connection.
const spareTime = 2 * time.Second

// OpenSpares opens n connections for the next calls of Dial, which then need no handshake. If
// it fails, Dial opens a connection itself.
func (c *Client) OpenSpares(ctx context.Context, n int) {
	c.mu.Lock()
	epoch := c.epoch
	c.mu.Unlock()
	for range n {
		conn, err := c.request(ctx, verbWait, 0, true)
		if err != nil {
			return
		}
		c.mu.Lock()
		stale := epoch != c.epoch
		if !stale {
			c.spares = append(c.spares, conn)
		}
		c.mu.Unlock()
		if stale {
			conn.Close()
			return
		}
	}
}

// DropSpares closes the connections that were opened in advance, and those that are being opened.
func (c *Client) DropSpares() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.epoch++
	for _, conn := range c.spares {
		conn.NetConn().Close() // without a TLS alert, which blocks if the peer is unreachable
	}
	c.spares = nil
}

func (c *Client) takeSpare() *tls.Conn {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.spares) == 0 {
		return nil
	}
	conn := c.spares[0]
	c.spares = c.spares[1:]
	return conn
}

// dialSpare dials over a connection that was opened in advance. It returns neither a connection nor an
// error if no such connection works.
func (c *Client) dialSpare(ctx context.Context, port int) (net.Conn, error) {
	for {
		conn := c.takeSpare()
		if conn == nil {
			return nil, nil
		}
		attempt, cancel := context.WithTimeout(ctx, spareTime)
		err := begin(attempt, conn, verbDial, port, true)
		cancel()
		if err == nil {
			return conn, nil
		}
		conn.NetConn().Close()
		switch {
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case errors.Is(err, ErrRefused):
			return nil, err
		}
	}
}
