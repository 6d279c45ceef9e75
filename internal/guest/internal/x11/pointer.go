package x11

import (
	"context"
	"fmt"
	"image"
	"math"

	"github.com/jezek/xgb/xproto"
	"github.com/jezek/xgb/xtest"
)

// Button is a mouse button as X numbers them.
type Button byte

// The buttons. Steps of the wheel are buttons too.
const (
	Left       Button = 1
	Middle     Button = 2
	Right      Button = 3
	WheelUp    Button = 4
	WheelDown  Button = 5
	WheelLeft  Button = 6
	WheelRight Button = 7
	Back       Button = 8
	Forward    Button = 9
)

// maxScroll is the maximum number of steps of a call.
const maxScroll = 10_000

// held tracks the buttons and keys that this connection has pressed. The input lane guards it.
type held struct {
	buttons map[Button]bool
	keys    map[string]heldKey
	recent  bool // a button was pressed after the last awaitManager
}

// Pointer returns the position of the pointer.
func (c *Conn) Pointer(ctx context.Context) (image.Point, error) {
	return do(ctx, c, c.screen, func() (image.Point, error) {
		p, err := xproto.QueryPointer(c.x, c.root).Reply()
		if err != nil {
			return image.Point{}, fmt.Errorf("query pointer: %w", err)
		}
		return image.Pt(int(p.RootX), int(p.RootY)), nil
	})
}

// Move moves the pointer to p. The server keeps it on the screen.
func (c *Conn) Move(ctx context.Context, p image.Point) error {
	return c.inject(ctx, "move pointer", func() error {
		c.move(p)
		return nil
	})
}

// MoveBy moves the pointer by an offset, without acceleration.
func (c *Conn) MoveBy(ctx context.Context, d image.Point) error {
	return c.inject(ctx, "move pointer", func() error {
		at, err := xproto.QueryPointer(c.x, c.root).Reply()
		if err != nil {
			return err
		}
		c.move(image.Pt(int(at.RootX), int(at.RootY)).Add(d))
		return nil
	})
}

// Press presses a button and keeps it pressed until Release, ReleaseAll or Close.
func (c *Conn) Press(ctx context.Context, b Button) error {
	return c.inject(ctx, "press button", func() error {
		if err := b.check(); err != nil {
			return err
		}
		c.fake(xproto.ButtonPress, byte(b))
		if c.held.buttons == nil {
			c.held.buttons = map[Button]bool{}
		}
		c.held.buttons[b] = true
		c.held.recent = true
		return nil
	})
}

// Release releases a button. It does nothing if the button is not pressed.
func (c *Conn) Release(ctx context.Context, b Button) error {
	return c.inject(ctx, "release button", func() error {
		if err := b.check(); err != nil {
			return err
		}
		c.fake(xproto.ButtonRelease, byte(b))
		delete(c.held.buttons, b)
		return nil
	})
}

// Scroll turns the wheel by steps. Positive values scroll right and down.
func (c *Conn) Scroll(ctx context.Context, right, down int) error {
	return c.inject(ctx, "scroll", func() error {
		if max(right, -right, down, -down) > maxScroll {
			return fmt.Errorf("too many steps (limit %d)", maxScroll)
		}
		c.wheel(down, WheelUp, WheelDown)
		c.wheel(right, WheelLeft, WheelRight)
		return nil
	})
}

func (c *Conn) wheel(steps int, negative, positive Button) {
	b := positive
	if steps < 0 {
		b, steps = negative, -steps
	}
	for range steps {
		c.fake(xproto.ButtonPress, byte(b))
		c.fake(xproto.ButtonRelease, byte(b))
	}
}

// ReleaseAll releases every button and key that this connection has pressed.
func (c *Conn) ReleaseAll(ctx context.Context) error {
	return c.inject(ctx, "release input", func() error {
		for b := range c.held.buttons {
			c.fake(xproto.ButtonRelease, byte(b))
		}
		clear(c.held.buttons)
		for name := range c.held.keys {
			if err := c.keyUp(ctx, name); err != nil {
				return err
			}
		}
		return nil
	})
}

// inject runs fn on the input lane and returns when the server has processed its input.
func (c *Conn) inject(ctx context.Context, what string, fn func() error) error {
	_, err := do(ctx, c, c.input, func() (struct{}, error) {
		err := fn()
		if err == nil {
			err = c.roundTrip()
		}
		if err != nil {
			return struct{}{}, fmt.Errorf("%s: %w", what, err)
		}
		return struct{}{}, nil
	})
	return err
}

func (c *Conn) move(p image.Point) {
	clamp := func(v int) int16 { return int16(min(max(v, 0), math.MaxInt16)) }
	xtest.FakeInput(c.x, xproto.MotionNotify, 0, 0, c.root, clamp(p.X), clamp(p.Y), 0)
}

// fake sends one input event. It fails only for invalid codes, which callers exclude.
func (c *Conn) fake(kind, detail byte) {
	xtest.FakeInput(c.x, kind, detail, 0, c.root, 0, 0, 0)
}

func (b Button) check() error {
	if b < Left || b > Forward {
		return fmt.Errorf("invalid button %d; use %d to %d", b, Left, Forward)
	}
	return nil
}
