// Package x11 controls an X display over its unix socket: screenshots, pointer and keyboard input, clipboard, screen size.
//
// It owns the connection, the shared memory for screenshots, the selections it offers and the keys it has pressed, and releases
// all of them on Close. It starts no X server and no window manager, reads no environment, and supports only displays with 32
// bits per pixel in BGRX order. When the server ends, every call fails immediately with ErrLost. When the server hangs, calls end
// with their context.
package x11

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jezek/xgb"
	"github.com/jezek/xgb/xproto"
)

// ErrLost is wrapped by every error of a connection that has ended. Dial again.
var ErrLost = errors.New("x11: connection to the display was lost")

// Config of a connection.
type Config struct {
	// Socket is the display's unix socket, such as /tmp/.X11-unix/X7.
	Socket string
	// Cookie is the 16 bytes of MIT-MAGIC-COOKIE-1. Empty if the server requires none.
	Cookie []byte
	// Settle is how long to wait until an application without _NET_WM_PING reads a changed keymap. Zero means 100 ms.
	Settle time.Duration
	// MaxClipboard is the maximum size of a selection that is read or offered. Zero means 32 MiB.
	MaxClipboard int
}

// Conn is a connection to a display. It is safe for concurrent use: calls of one kind (input, screenshots and sizes, reading
// selections, offering selections) run one at a time; calls of different kinds run concurrently.
type Conn struct {
	cfg    Config
	x      *xgb.Conn
	wire   *wire
	root   xproto.Window
	window xproto.Window
	ext    extensions
	atoms  atoms
	others uint32 // bits of an ID that identify its client; 0 means the server itself

	input, screen, reads, owns, pings lane

	keys keyboard
	held held
	shm  segment
	sel  selections

	waiters waiters
	nonce   atomic.Uint32

	mu       sync.Mutex // guards closing: no operation starts once Close waits for them
	closing  bool
	ops      sync.WaitGroup
	pumped   chan struct{}
	done     chan struct{}
	lost     error
	endOnce  sync.Once
	shutOnce sync.Once
}

// Dial connects, authenticates and inspects the display. ctx applies only to Dial.
func Dial(ctx context.Context, cfg Config) (*Conn, error) {
	if cfg.Settle == 0 {
		cfg.Settle = 100 * time.Millisecond
	}
	if cfg.MaxClipboard == 0 {
		cfg.MaxClipboard = 32 << 20
	}
	w, x, err := open(ctx, cfg.Socket, cfg.Cookie)
	if err != nil {
		return nil, fmt.Errorf("connect to x display at %s: %w", cfg.Socket, err)
	}
	c := &Conn{
		cfg: cfg, wire: w, x: x,
		input: newLane(), screen: newLane(), reads: newLane(), owns: newLane(), pings: newLane(),
		pumped: make(chan struct{}), done: make(chan struct{}),
	}
	c.sel.init()
	c.keys.names = namedKeys()
	go c.pump()
	c.begin(c.serveSelections)
	if _, err := do(ctx, c, c.input, func() (struct{}, error) { return struct{}{}, c.inspect() }); err != nil {
		c.shut()
		return nil, fmt.Errorf("set up x display at %s: %w", cfg.Socket, err)
	}
	return c, nil
}

// inspect queries what later calls need, and creates the window for selections and events.
func (c *Conn) inspect() error {
	setup := xproto.Setup(c.x)
	screen := setup.DefaultScreen(c.x)
	c.root = screen.Root
	c.others = idBits &^ setup.ResourceIdMask
	if err := checkPixels(setup, screen); err != nil {
		return err
	}
	var err error
	if c.ext, err = c.findExtensions(); err != nil {
		return err
	}
	if c.atoms, err = c.internAtoms(); err != nil {
		return err
	}
	if c.window, err = xproto.NewWindowId(c.x); err != nil {
		return err
	}
	err = xproto.CreateWindowChecked(c.x, 0, c.window, c.root, -1, -1, 1, 1, 0, xproto.WindowClassInputOnly,
		screen.RootVisual, xproto.CwOverrideRedirect|xproto.CwEventMask, []uint32{1, xproto.EventMaskPropertyChange}).Check()
	if err != nil {
		return fmt.Errorf("create helper window: %w", err)
	}
	// Applications reply to a ping at the root window; see settle.
	return xproto.ChangeWindowAttributesChecked(c.x, c.root, xproto.CwEventMask,
		[]uint32{xproto.EventMaskSubstructureNotify}).Check()
}

// Done is closed when the connection has ended.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Err is nil while the connection is open, and wraps ErrLost afterwards.
func (c *Conn) Err() error {
	select {
	case <-c.done:
		return c.lost
	default:
		return nil
	}
}

// Close releases keys, buttons and selections, and closes the connection. It waits for the goroutines of the connection, about
// one second even if the server hangs.
func (c *Conn) Close() error {
	c.shutOnce.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if c.Err() == nil {
			// A pressed key outlives its client. An error means that the server has ended or hangs.
			_ = c.ReleaseAll(ctx)
		}
		c.shut()
	})
	<-c.pumped
	return nil
}

// shut ends the connection and waits for its goroutines.
func (c *Conn) shut() {
	c.end(errors.New("closed"))
	c.mu.Lock()
	c.closing = true
	c.mu.Unlock()
	<-c.pumped
	c.ops.Wait()
	for {
		// xgb closes its channel of IDs when its own goroutines have ended.
		if _, err := c.x.NewId(); errors.Is(err, io.EOF) {
			break
		}
	}
	c.shm.free()
}

// end ends the connection and unblocks its readers and writers.
func (c *Conn) end(reason error) {
	c.endOnce.Do(func() {
		c.lost = fmt.Errorf("%w (%w)", ErrLost, reason)
		close(c.done)
		c.wire.Close()
	})
}

// Sync returns when the server has processed all earlier requests.
func (c *Conn) Sync(ctx context.Context) error {
	_, err := do(ctx, c, c.input, func() (struct{}, error) { return struct{}{}, c.roundTrip() })
	return err
}

// Ping returns when the server has responded. Unlike Sync it does not wait for other calls, so a timeout means that the server
// hangs.
func (c *Conn) Ping(ctx context.Context) error {
	_, err := do(ctx, c, c.pings, func() (struct{}, error) { return struct{}{}, c.roundTrip() })
	return err
}

// roundTrip waits until the server has processed all earlier requests. xgb's own Sync ignores the end of the server.
func (c *Conn) roundTrip() error {
	_, err := xproto.GetInputFocus(c.x).Reply()
	return err
}

// begin starts fn on a goroutine that Close waits for, unless Close has begun.
func (c *Conn) begin(fn func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closing {
		return false
	}
	c.ops.Go(fn)
	return true
}

// isLost reports whether xgb's error means that the connection has ended, and waits until c.lost is set.
func (c *Conn) isLost(err error) bool {
	if !errors.Is(err, io.EOF) {
		return false
	}
	<-c.done
	return true
}

// lane serializes operations of one kind.
type lane chan struct{}

func newLane() lane { return make(lane, 1) }

// do runs fn when its lane is free and returns its result, or earlier when ctx or the connection ends. xgb's calls cannot be
// canceled, so fn then continues in the background and holds the lane until the server replies or Close closes the
// connection. fn must therefore not touch anything that the caller owns.
func do[T any](ctx context.Context, c *Conn, l lane, fn func() (T, error)) (T, error) {
	var zero T
	if err := ctx.Err(); err != nil {
		return zero, err
	}
	select {
	case l <- struct{}{}:
	case <-ctx.Done():
		return zero, ctx.Err()
	case <-c.done:
		return zero, c.lost
	}
	type outcome struct {
		value T
		err   error
	}
	out := make(chan outcome, 1)
	if !c.begin(func() {
		defer func() { <-l }()
		v, err := fn()
		out <- outcome{v, err}
	}) {
		<-l
		return zero, c.lost
	}
	select {
	case o := <-out:
		if c.isLost(o.err) {
			return zero, c.lost
		}
		return o.value, o.err
	case <-ctx.Done():
		return zero, ctx.Err()
	case <-c.done:
		return zero, c.lost
	}
}
