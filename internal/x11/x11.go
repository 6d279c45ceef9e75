// Package x11 drives one X display over its unix socket: screenshots, pointer and keyboard input, clipboard, screen size.
//
// It owns the connection, the shared memory it grabs into, the selections it was told to hold and the keys it has pressed,
// and gives all of them back on Close. It starts no X server and no window manager, reads no environment, and refuses
// displays that are not 32 bits per pixel in BGRX order. A server that dies ends every call at once with ErrLost; a server
// that stands still ends them when their context does.
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

// ErrLost is in the chain of every error that comes from a closed or dead connection. Dial again.
var ErrLost = errors.New("x11: connection to the display is gone")

// Config says which display to talk to and how patient to be.
type Config struct {
	// Socket is the display's unix socket, such as /tmp/.X11-unix/X7.
	Socket string
	// Cookie is the 16 bytes of MIT-MAGIC-COOKIE-1. Empty means that the server asks for none.
	Cookie []byte
	// Settle is how long an application that does not answer _NET_WM_PING gets to notice a changed keyboard mapping.
	// Zero means 100 ms.
	Settle time.Duration
	// MaxClipboard bounds the bytes read from or offered in a selection. Zero means 32 MiB.
	MaxClipboard int
}

// Conn is a connection to a display. Its methods may be called from many goroutines; calls of one kind (input,
// screenshots and sizes, reading selections, offering them) take turns, calls of different kinds do not wait for each other.
type Conn struct {
	cfg    Config
	x      *xgb.Conn
	wire   *wire
	root   xproto.Window
	window xproto.Window
	ext    extensions
	atoms  atoms
	others uint32 // the bits of an id that say whose client it is; none of them set means the server's own

	input, screen, reads, owns, pings lane

	keys keyboard
	held held
	shm  segment
	sel  selections

	waiters waiters
	nonce   atomic.Uint32

	mu       sync.Mutex // guards closing, so that no operation starts once Close waits for them
	closing  bool
	ops      sync.WaitGroup
	pumped   chan struct{}
	done     chan struct{}
	lost     error
	endOnce  sync.Once
	shutOnce sync.Once
}

// Dial connects, authenticates and looks the display over. ctx bounds only the dialling.
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

// inspect learns what later calls need, and makes the window that selections and events belong to.
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
	// Applications answer a ping by sending to the root window; see settle.
	return xproto.ChangeWindowAttributesChecked(c.x, c.root, xproto.CwEventMask,
		[]uint32{xproto.EventMaskSubstructureNotify}).Check()
}

// Done is closed when the connection is gone, whoever ended it.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Err is nil while the connection lives, and wraps ErrLost afterwards.
func (c *Conn) Err() error {
	select {
	case <-c.done:
		return c.lost
	default:
		return nil
	}
}

// Close releases keys and buttons that are still held, gives up selections, and ends the connection. It returns when
// nothing of it is left, within about a second even if the server stands still.
func (c *Conn) Close() error {
	c.shutOnce.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if c.Err() == nil {
			// A held key outlives the client that pressed it. If this fails the server is dead or stuck, and so is the key.
			_ = c.ReleaseAll(ctx)
		}
		c.shut()
	})
	<-c.pumped
	return nil
}

// shut ends the connection and waits for every goroutine that works on it.
func (c *Conn) shut() {
	c.end(errors.New("closed"))
	c.mu.Lock()
	c.closing = true
	c.mu.Unlock()
	<-c.pumped
	c.ops.Wait()
	for {
		// The channel of ids closes when xgb's own goroutines are through.
		if _, err := c.x.NewId(); errors.Is(err, io.EOF) {
			break
		}
	}
	c.shm.free()
}

// end marks the connection as gone and unblocks whoever reads or writes it.
func (c *Conn) end(why error) {
	c.endOnce.Do(func() {
		c.lost = fmt.Errorf("%w (%w)", ErrLost, why)
		close(c.done)
		c.wire.Close()
	})
}

// Sync returns when the server has taken everything that was sent before.
func (c *Conn) Sync(ctx context.Context) error {
	_, err := do(ctx, c, c.input, func() (struct{}, error) { return struct{}{}, c.roundTrip() })
	return err
}

// Ping returns when the server has answered. Unlike Sync it waits for no other call, so that a failure says something about
// the server and not about who else is using it.
func (c *Conn) Ping(ctx context.Context) error {
	_, err := do(ctx, c, c.pings, func() (struct{}, error) { return struct{}{}, c.roundTrip() })
	return err
}

// roundTrip proves that the server has processed all earlier requests. xgb's own Sync swallows the error of a dead server.
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

// isLost tells xgb's way of saying that the connection is gone, and waits until c.lost can be read.
func (c *Conn) isLost(err error) bool {
	if !errors.Is(err, io.EOF) {
		return false
	}
	<-c.done
	return true
}

// lane lets one operation of a kind run at a time.
type lane chan struct{}

func newLane() lane { return make(lane, 1) }

// do runs fn when its lane is free and returns its result, or earlier when ctx ends or the connection is lost. xgb's calls
// cannot be cancelled, so fn then goes on behind the caller's back, holding the lane, until the server answers or Close
// cuts the connection. fn must therefore not touch anything that the caller owns.
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
