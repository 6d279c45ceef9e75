// Package cdp is a thin client of the Chrome DevTools Protocol: one WebSocket to the browser, any number of sessions on it.
//
// It owns the connection, matches replies to calls and hands events to subscribers through queues of bounded size. It knows
// the handful of commands that manage targets, and leaves all others to its users: Call takes any method. It starts no
// browser and does not reconnect; when the connection dies, every call and subscription ends with ErrClosed.
package cdp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"
)

var (
	// ErrClosed is in the chain of every error that comes from a connection that is gone. Dial again.
	ErrClosed = errors.New("cdp: connection to the browser is gone")
	// ErrDetached is in the chain of errors about a session that has ended: its target closed, crashed or was detached.
	ErrDetached = errors.New("cdp: session has ended")
)

// SessionID names a session with one target. The zero value is the browser itself.
type SessionID string

// Browser is the session that commands to the browser as a whole go to.
const Browser SessionID = ""

// DialFunc makes the network connection; net.Dialer's DialContext is one.
type DialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// Config says where the browser is and what to put up with.
type Config struct {
	// URL is the browser's WebSocket, as Version tells.
	URL string
	// Dial replaces the usual dialling, for a browser behind a unix socket. Proxies of the environment are never used.
	Dial DialFunc
	// MaxMessage bounds one message from the browser; a larger one ends the connection. Zero means 256 MiB.
	MaxMessage int64
	// WriteTimeout is how long the browser may refuse to take a message before it counts as dead. Zero means 30 s.
	WriteTimeout time.Duration
}

// Client is a connection to a browser. Its methods may be called from many goroutines.
type Client struct {
	ws     *websocket.Conn
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

// call is one that waits for its reply.
type call struct {
	session SessionID
	reply   chan []byte
	failed  chan error
}

// Dial connects to the browser. ctx bounds only the dialling.
func Dial(ctx context.Context, cfg Config) (*Client, error) {
	if cfg.MaxMessage == 0 {
		cfg.MaxMessage = 256 << 20
	}
	if cfg.WriteTimeout == 0 {
		cfg.WriteTimeout = 30 * time.Second
	}
	transport := newTransport(cfg.Dial)
	defer transport.CloseIdleConnections()
	ws, resp, err := websocket.Dial(ctx, cfg.URL, &websocket.DialOptions{HTTPClient: &http.Client{Transport: transport}})
	if err != nil {
		if resp != nil {
			err = fmt.Errorf("%w (http status %d)", err, resp.StatusCode)
			if resp.Body != nil {
				resp.Body.Close()
			}
		}
		return nil, fmt.Errorf("connect to browser: %w", err)
	}
	ws.SetReadLimit(cfg.MaxMessage)
	life, stop := context.WithCancel(context.Background())
	c := &Client{
		ws: ws, cfg: cfg, stop: stop,
		out: make(chan []byte, 16), done: make(chan struct{}),
		pending: map[int64]*call{}, subs: map[*Subscription]struct{}{},
	}
	c.loops.Go(func() { c.read(life) })
	c.loops.Go(func() { c.write(life) })
	return c, nil
}

// newTransport returns one that ignores proxies and keeps nothing open.
func newTransport(dial DialFunc) *http.Transport {
	if dial == nil {
		dial = new(net.Dialer).DialContext
	}
	return &http.Transport{DialContext: dial, DisableKeepAlives: true, DisableCompression: true}
}

// Done is closed when the connection is gone, whoever ended it.
func (c *Client) Done() <-chan struct{} { return c.done }

// Err is nil while the connection lives, and wraps ErrClosed afterwards.
func (c *Client) Err() error {
	select {
	case <-c.done:
		return c.err
	default:
		return nil
	}
}

// Close ends the connection and returns when nothing of it is left. The browser and its targets live on.
func (c *Client) Close() error {
	c.end(errors.New("closed"))
	c.loops.Wait()
	return nil
}

// end marks the connection as gone, once, and lets go of everybody who waits for it.
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

// Call sends a command and decodes its result, if result is not nil. The end of ctx ends the wait, not the command.
// What the browser refuses comes back as *Error.
func (c *Client) Call(ctx context.Context, session SessionID, method string, params, result any) error {
	id := c.lastID.Add(1)
	msg, err := json.Marshal(struct {
		ID        int64     `json:"id"`
		SessionID SessionID `json:"sessionId,omitempty"`
		Method    string    `json:"method"`
		Params    any       `json:"params,omitempty"`
	}{id, session, method, params})
	if err != nil {
		return fmt.Errorf("%s: encode parameters: %w", method, err)
	}
	wait := &call{session: session, reply: make(chan []byte, 1), failed: make(chan error, 1)}
	c.mu.Lock()
	c.pending[id] = wait
	c.mu.Unlock()
	defer c.forget(id)

	select {
	case c.out <- msg:
	case <-c.done:
		return fmt.Errorf("%s: %w", method, c.err)
	case <-ctx.Done():
		return fmt.Errorf("%s: %w", method, ctx.Err())
	}
	select {
	case raw := <-wait.reply:
		return decodeReply(method, raw, result)
	case err := <-wait.failed:
		return fmt.Errorf("%s: %w", method, err)
	case <-ctx.Done():
		return fmt.Errorf("%s: %w", method, ctx.Err())
	case <-c.done:
	}
	// The reply may have come just before the end.
	select {
	case raw := <-wait.reply:
		return decodeReply(method, raw, result)
	default:
		return fmt.Errorf("%s: %w", method, c.err)
	}
}

func (c *Client) forget(id int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.pending, id)
}

// write sends messages one after the other. A caller's context never gets near the socket: the library closes the whole
// connection when the context of a write ends.
func (c *Client) write(life context.Context) {
	for {
		select {
		case <-life.Done():
			return
		case msg := <-c.out:
			ctx, cancel := context.WithTimeout(life, c.cfg.WriteTimeout)
			err := c.ws.Write(ctx, websocket.MessageText, msg)
			cancel()
			if err != nil {
				c.end(fmt.Errorf("send: %w", err))
				return
			}
		}
	}
}

// read takes messages until the connection ends. It never waits for a caller or a subscriber.
func (c *Client) read(life context.Context) {
	for {
		_, msg, err := c.ws.Read(life)
		if err != nil {
			c.end(explainRead(err))
			// Ends the library's own goroutine; the connection itself is gone already.
			_ = c.ws.CloseNow()
			return
		}
		c.route(msg)
	}
}

func explainRead(err error) error {
	if errors.Is(err, websocket.ErrMessageTooBig) {
		return err
	}
	return fmt.Errorf("the browser ended it: %w", err)
}
