package tunnel

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// ErrRefused means that the sandbox accepted the connection but refused the request.
var ErrRefused = errors.New("refused by the sandbox")

// Client is the hub's end.
type Client struct {
	tls  *tls.Config
	open func(context.Context) (net.Conn, error)

	mu     sync.Mutex
	epoch  int         // counts calls of DropSpares
	spares []*tls.Conn // opened in advance
}

// NewClient returns the hub's end with an identity, for the sandbox whose key has a pin. Open
// opens connections to the sandbox.
func NewClient(cert, key []byte, sandbox string, open func(context.Context) (net.Conn, error)) (*Client, error) {
	settings, err := Configure(cert, key, sandbox)
	if err != nil {
		return nil, err
	}
	return &Client{tls: settings, open: open}, nil
}

// Via returns a client of the same sandbox that opens connections with another function.
func (c *Client) Via(open func(context.Context) (net.Conn, error)) *Client {
	return &Client{tls: c.tls, open: open}
}

// Dial connects to a port inside; 0 is the server.
func (c *Client) Dial(ctx context.Context, port int) (net.Conn, error) {
	conn, err := c.dialSpare(ctx, port)
	if conn == nil && err == nil {
		conn, err = c.request(ctx, verbDial, port, true)
	}
	if err != nil {
		return nil, fmt.Errorf("dial port %d inside: %w", port, err)
	}
	return conn, nil
}

// maxStats bounds the statistics that a sandbox sends.
const maxStats = 16 << 10

// Stats returns the resource usage of the sandbox.
func (c *Client) Stats(ctx context.Context) ([]byte, error) {
	conn, err := c.request(ctx, verbStats, 0, true)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	conn.SetDeadline(time.Now().Add(handshakeTime))
	return io.ReadAll(io.LimitReader(conn, maxStats))
}

// request opens a connection and, if wait is set, waits for the response.
func (c *Client) request(ctx context.Context, verb byte, port int, wait bool) (*tls.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, handshakeTime)
	defer cancel()
	raw, err := c.open(ctx)
	if err != nil {
		return nil, err
	}
	conn := tls.Client(raw, c.tls)
	err = conn.HandshakeContext(ctx)
	if err == nil {
		err = begin(ctx, conn, verb, port, wait)
	}
	if err != nil {
		raw.Close()
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, err
	}
	return conn, nil
}

// begin sends a request and, if wait is set, waits for the response.
func begin(ctx context.Context, conn *tls.Conn, verb byte, port int, wait bool) error {
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if _, err := conn.Write(binary.BigEndian.AppendUint16([]byte{verb}, uint16(port))); err != nil {
		return err
	}
	if wait {
		if err := readResponse(conn); err != nil {
			return err
		}
	}
	if !stop() {
		return context.Cause(ctx)
	}
	return nil
}

func readResponse(conn net.Conn) error {
	var status [1]byte
	if _, err := io.ReadFull(conn, status[:]); err != nil {
		return err
	}
	if status[0] == granted {
		return nil
	}
	conn.SetReadDeadline(time.Now().Add(handshakeTime))
	reason, err := io.ReadAll(io.LimitReader(conn, maxReason))
	if err != nil && len(reason) == 0 {
		return err
	}
	return fmt.Errorf("%w: %s", ErrRefused, reason)
}

// maxReady is the maximum number of connections that are kept ready for outgoing connections.
const maxReady = 16

// Pauses between attempts to reach a sandbox.
const (
	minRetry = 20 * time.Millisecond
	maxRetry = 5 * time.Second
)

// Listen accepts the outgoing connections of the sandbox, until the listener is closed. It keeps
// one connection ready, and more during a burst.
func (c *Client) Listen(address net.Addr) net.Listener {
	l := &listener{client: c, address: address, accepted: make(chan net.Conn)}
	l.life, l.end = context.WithCancel(context.Background())
	l.keepReady(1)
	return l
}

type listener struct {
	client   *Client
	address  net.Addr
	accepted chan net.Conn
	life     context.Context
	end      context.CancelFunc

	mu    sync.Mutex
	ready int
	work  sync.WaitGroup
}

// keepReady opens connections until at least n are ready.
func (l *listener) keepReady(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for ; l.ready < min(n, maxReady) && l.life.Err() == nil; l.ready++ {
		l.work.Go(l.wait)
	}
}

// wait waits for one outgoing connection, and passes it to Accept.
func (l *listener) wait() {
	for pause := minRetry; ; pause = min(2*pause, maxRetry) {
		began := time.Now()
		conn, others, err := l.client.accept(l.life)
		if err == nil {
			l.mu.Lock()
			l.ready--
			l.mu.Unlock()
			l.keepReady(1 + others)
			select {
			case l.accepted <- conn:
			case <-l.life.Done():
				conn.Close()
			}
			return
		}
		if time.Since(began) > maxRetry {
			pause = minRetry
		}
		select {
		case <-l.life.Done():
			return
		case <-time.After(pause):
		}
	}
}

// accept returns the next outgoing connection, and the number of others that wait inside.
func (c *Client) accept(ctx context.Context) (conn net.Conn, others int, err error) {
	conn, err = c.request(ctx, verbAccept, 0, false)
	if err != nil {
		return nil, 0, err // not a nil pointer in an interface
	}
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	err = readResponse(conn)
	var count [1]byte
	if err == nil {
		_, err = io.ReadFull(conn, count[:])
	}
	if err == nil {
		_, err = conn.Write([]byte{granted})
	}
	if err == nil && !stop() {
		err = context.Cause(ctx)
	}
	if err != nil {
		conn.Close()
		return nil, 0, err
	}
	return conn, int(count[0]), nil
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.accepted:
		return c, nil
	case <-l.life.Done():
		return nil, net.ErrClosed
	}
}

// Close ends the listener and all waits. It does not close accepted connections.
func (l *listener) Close() error {
	l.mu.Lock() // so that no work is added after end
	l.end()
	l.mu.Unlock()
	l.work.Wait()
	return nil
}

func (l *listener) Addr() net.Addr { return l.address }
