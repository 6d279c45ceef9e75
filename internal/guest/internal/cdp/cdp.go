// Package cdp is a client of the Chrome DevTools Protocol.
//
// Pipe is the private channel to a browser that this program started. Many clients share it, each with its own connection:
// clients in this program and external WebSocket clients. Client uses one connection: it matches replies to calls and
// delivers events to subscribers through bounded queues. The package neither starts a browser nor reconnects. When the
// connection ends, every call and subscription fails with ErrClosed.
package cdp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

var (
	// ErrClosed is wrapped by every error of a connection that has ended. The caller must connect again.
	ErrClosed = errors.New("cdp: connection to the browser was lost")
	// ErrDetached is wrapped by errors about a session that has ended: its target closed, crashed or was detached.
	ErrDetached = errors.New("cdp: session has ended")
)

// SessionID is the id of a session with one target. The zero value is the browser itself.
type SessionID string

// Browser is the session of commands to the browser as a whole.
const Browser SessionID = ""

// Config of a connection.
type Config struct {
	// MaxMessage is the maximum size of a WebSocket message; a larger one ends the connection. Zero means 256 MiB.
	MaxMessage int64
	// WriteTimeout is how long the browser may take to accept a message. Zero means 30 s.
	WriteTimeout time.Duration
	// Handle receives every event, in order, before the reply to any later message is delivered: when a call returns,
	// the events that preceded its reply have been handled. It runs on the reading goroutine and must not block or call.
	Handle func(Event)
}

// transport carries messages to and from a browser.
type transport interface {
	Read(ctx context.Context) ([]byte, error)
	// Write may end the transport when ctx ends.
	Write(ctx context.Context, msg []byte) error
	// CloseNow ends the transport; it may be called more than once.
	CloseNow() error
}

// Client is a connection to a browser. Its methods may be called from many goroutines.
type Client struct {
	conn   transport
	cfg    Config
	stop   context.CancelFunc
	lastID atomic.Int64
	out    chan []byte
	loops  sync.WaitGroup

	done    chan struct{}
	err     error // set before done is closed
	endOnce sync.Once

	mu      sync.Mutex
	pending map[int64]*call
	subs    map[*Subscription]struct{}
}

// call is a command that waits for its reply.
type call struct {
	session SessionID
	handle  func(result json.RawMessage) // nil, or called on the reading goroutine
	reply   chan []byte
	failed  chan error
}

// Connect returns a client with its own connection to the browser. ctx limits only the connecting.
func (p *Pipe) Connect(ctx context.Context, cfg Config) (*Client, error) {
	conn, err := p.Open(ctx, "")
	if err != nil {
		return nil, fmt.Errorf("connect to browser: %w", err)
	}
	return newClient(conn, cfg), nil
}

func newClient(conn transport, cfg Config) *Client {
	if cfg.WriteTimeout == 0 {
		cfg.WriteTimeout = writeTime
	}
	life, stop := context.WithCancel(context.Background())
	c := &Client{
		conn: conn, cfg: cfg, stop: stop,
		out: make(chan []byte, 16), done: make(chan struct{}),
		pending: map[int64]*call{}, subs: map[*Subscription]struct{}{},
	}
	c.loops.Go(func() { c.read(life) })
	c.loops.Go(func() { c.write(life) })
	return c
}

// Done is closed when the connection has ended.
func (c *Client) Done() <-chan struct{} { return c.done }

// Err is nil while the connection is open, and wraps ErrClosed afterwards.
func (c *Client) Err() error {
	select {
	case <-c.done:
		return c.err
	default:
		return nil
	}
}

// Close closes the connection and waits for its goroutines. The browser and its targets keep running.
func (c *Client) Close() error {
	c.end(errors.New("closed"))
	c.loops.Wait()
	return nil
}

// end ends the connection once and fails all pending calls and subscriptions.
func (c *Client) end(why error) {
	c.endOnce.Do(func() {
		c.err = fmt.Errorf("%w (%w)", ErrClosed, why)
		close(c.done)
		c.stop()
		c.mu.Lock()
		defer c.mu.Unlock()
		for s := range c.subs {
			s.end(c.err)
		}
		clear(c.subs)
	})
}

// Call sends a command and decodes its result, if result is not nil. ctx limits the wait, not the command. An error that the
// browser returns is an *Error.
func (c *Client) Call(ctx context.Context, session SessionID, method string, params, result any) error {
	p, err := c.Begin(ctx, session, method, params)
	if err != nil {
		return err
	}
	return p.Wait(ctx, result)
}

// Pending is a command that was sent. Its Wait is called at most once. Without it, the command is forgotten when its reply
// arrives or its session ends.
type Pending struct {
	client *Client
	id     int64
	method string
	call   *call
}

// Begin sends a command without waiting for its reply. The browser receives commands in the order of the calls.
func (c *Client) Begin(ctx context.Context, session SessionID, method string, params any) (*Pending, error) {
	return c.BeginHandled(ctx, session, method, params, nil)
}

// BeginHandled is Begin for a result that must be handled in order with events. handle receives it before any later event
// and is not called if the command fails. Like Config.Handle it must not block or call.
func (c *Client) BeginHandled(ctx context.Context, session SessionID, method string, params any,
	handle func(result json.RawMessage)) (*Pending, error) {
	id := c.lastID.Add(1)
	msg, err := json.Marshal(struct {
		ID        int64     `json:"id"`
		SessionID SessionID `json:"sessionId,omitempty"`
		Method    string    `json:"method"`
		Params    any       `json:"params,omitempty"`
	}{id, session, method, params})
	if err != nil {
		return nil, fmt.Errorf("%s: encode parameters: %w", method, err)
	}
	wait := &call{session: session, handle: handle, reply: make(chan []byte, 1), failed: make(chan error, 1)}
	c.mu.Lock()
	c.pending[id] = wait
	c.mu.Unlock()
	select {
	case c.out <- msg:
		return &Pending{c, id, method, wait}, nil
	case <-c.done:
		err = c.err
	case <-ctx.Done():
		err = ctx.Err()
	}
	c.forget(id)
	return nil, fmt.Errorf("%s: %w", method, err)
}

// Wait waits for the reply and decodes the result, if result is not nil.
func (p *Pending) Wait(ctx context.Context, result any) error {
	c := p.client
	defer c.forget(p.id)
	select {
	case raw := <-p.call.reply:
		return decodeReply(p.method, raw, result)
	case err := <-p.call.failed:
		return fmt.Errorf("%s: %w", p.method, err)
	case <-ctx.Done():
		return fmt.Errorf("%s: %w", p.method, ctx.Err())
	case <-c.done:
	}
	// The reply may have arrived in the meantime.
	select {
	case raw := <-p.call.reply:
		return decodeReply(p.method, raw, result)
	default:
		return fmt.Errorf("%s: %w", p.method, c.err)
	}
}

func (c *Client) forget(id int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.pending, id)
}

// write sends messages in order. It does not use a caller's context: a WebSocket is closed when the context of a write ends.
func (c *Client) write(life context.Context) {
	for {
		select {
		case <-life.Done():
			return
		case msg := <-c.out:
			ctx, cancel := context.WithTimeout(life, c.cfg.WriteTimeout)
			err := c.conn.Write(ctx, msg)
			cancel()
			if err != nil {
				c.end(fmt.Errorf("send: %w", err))
				return
			}
		}
	}
}

// read receives messages until the connection ends. It never blocks on a caller or a subscriber.
func (c *Client) read(life context.Context) {
	for {
		msg, err := c.conn.Read(life)
		if err != nil {
			c.end(err)
			_ = c.conn.CloseNow()
			return
		}
		c.route(msg)
	}
}
