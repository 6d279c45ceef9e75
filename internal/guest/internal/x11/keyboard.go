package x11

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jezek/xgb/xproto"
)

// heldKey is a pressed key.
type heldKey struct {
	code xproto.Keycode
	sym  xproto.Keysym
}

// KeyDown presses a key, given by its pyautogui name (see KeyNames) or its character, and keeps it pressed until KeyUp,
// ReleaseAll or Close. It also presses and releases shift if the character requires it.
func (c *Conn) KeyDown(ctx context.Context, name string) error {
	return c.inject(ctx, "press key", func() error { return c.keyDown(ctx, name) })
}

// KeyUp releases a key. It does nothing if the key is not pressed.
func (c *Conn) KeyUp(ctx context.Context, name string) error {
	return c.inject(ctx, "release key", func() error { return c.keyUp(ctx, name) })
}

// Chord presses keys in order and releases them in reverse: one key, or a shortcut such as ctrl, shift, t.
func (c *Conn) Chord(ctx context.Context, names ...string) error {
	return c.inject(ctx, "press keys", func() error {
		var err error
		down := 0
		for _, name := range names {
			if err = c.keyDown(ctx, name); err != nil {
				break
			}
			down++
		}
		// Release all keys, even after an error.
		for i := down - 1; i >= 0; i-- {
			err = errors.Join(err, c.keyUp(ctx, names[i]))
		}
		return err
	})
}

// Type enters any Unicode text through the keyboard. A line break is the enter key. Pressed keys modify the text. interval is
// the pause after each character. Typing stops when ctx ends.
func (c *Conn) Type(ctx context.Context, text string, interval time.Duration) error {
	return c.inject(ctx, "type text", func() error { return c.typeText(ctx, text, interval) })
}

func (c *Conn) keyDown(ctx context.Context, name string) error {
	if err := c.awaitManager(ctx); err != nil {
		return err
	}
	if err := c.loadKeymap(); err != nil {
		return err
	}
	sym, err := keysymOf(c.keys.names, name)
	if err != nil {
		return err
	}
	if _, down := c.held.keys[name]; down {
		return nil
	}
	key := heldKey{sym: sym}
	at, ok := c.keys.where[sym]
	if !ok {
		codes, err := c.borrow(ctx, []xproto.Keysym{sym}, nil)
		if err != nil {
			return err
		}
		at.code = codes[0]
	}
	if err := c.stroke(at, sym, xproto.KeyPress); err != nil {
		return err
	}
	key.code = at.code
	if c.held.keys == nil {
		c.held.keys = map[string]heldKey{}
	}
	c.held.keys[name] = key
	return nil
}

func (c *Conn) keyUp(ctx context.Context, name string) error {
	if key, ok := c.held.keys[name]; ok {
		delete(c.held.keys, name)
		c.fake(xproto.KeyRelease, byte(key.code))
		return nil
	}
	// Not pressed by this connection: a viewer may have pressed it. Only keys of the keymap are possible.
	if err := c.loadKeymap(); err != nil {
		return err
	}
	sym, err := keysymOf(c.keys.names, name)
	if err != nil {
		return err
	}
	if at, ok := c.keys.where[sym]; ok {
		c.fake(xproto.KeyRelease, byte(at.code))
	}
	return nil
}

// stroke sends the events of one key. It presses shift if the keysym is on the key's second level, unless shift is pressed
// already. On the keypad it uses num lock instead, because Chromium interprets keypad keys with shift as arrows.
func (c *Conn) stroke(at place, sym xproto.Keysym, kinds ...byte) error {
	shift, lock := at.shifted, c.keys.where[symNumLock].code
	if shift && isKeypad(sym) && lock != 0 {
		p, err := xproto.QueryPointer(c.x, c.root).Reply()
		if err != nil {
			return err
		}
		shift = false
		if p.Mask&c.keys.numLock == 0 {
			c.tap(lock)
			defer c.tap(lock)
		}
	}
	for _, k := range c.held.keys {
		if k.sym == symShiftL || k.sym == symShiftR {
			shift = false
		}
	}
	if shift {
		c.fake(xproto.KeyPress, byte(c.keys.shift))
	}
	for _, kind := range kinds {
		c.fake(kind, byte(at.code))
	}
	if shift {
		c.fake(xproto.KeyRelease, byte(c.keys.shift))
	}
	return nil
}

func (c *Conn) tap(code xproto.Keycode) {
	c.fake(xproto.KeyPress, byte(code))
	c.fake(xproto.KeyRelease, byte(code))
}

func (c *Conn) typeText(ctx context.Context, text string, interval time.Duration) error {
	syms, err := keysymsOf(text)
	if err != nil {
		return err
	}
	if err := c.awaitManager(ctx); err != nil {
		return err
	}
	if err := c.loadKeymap(); err != nil {
		return err
	}
	unlock, err := c.suspendCapsLock()
	if err != nil {
		return err
	}
	defer unlock()
	for len(syms) > 0 {
		n, missing, needed := c.keys.batch(syms, c.held.holds)
		if n == 0 {
			return errNoSpareKey
		}
		if err := c.typeBatch(ctx, syms[:n], missing, needed, interval); err != nil {
			return err
		}
		if syms = syms[n:]; len(syms) > 0 {
			if err := c.loadKeymap(); err != nil {
				return err
			}
		}
	}
	return nil
}

// typeBatch types keysyms. It maps the missing ones to spare keys, except to keys that are needed for other keysyms.
func (c *Conn) typeBatch(ctx context.Context, syms, missing []xproto.Keysym, needed []xproto.Keycode, interval time.Duration) error {
	borrowed := map[xproto.Keysym]place{}
	if len(missing) > 0 {
		codes, err := c.borrow(ctx, missing, needed)
		if err != nil {
			return err
		}
		for i, sym := range missing {
			borrowed[sym] = place{code: codes[i]}
		}
	}
	for _, sym := range syms {
		at, ok := borrowed[sym]
		if !ok {
			at = c.keys.where[sym]
		}
		if err := c.stroke(at, sym, xproto.KeyPress, xproto.KeyRelease); err != nil {
			return err
		}
		if err := pause(ctx, c, interval); err != nil {
			return err
		}
	}
	return nil
}

// pause waits after a character. It checks ctx even if d is zero.
func pause(ctx context.Context, c *Conn, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return ctx.Err()
	case <-ctx.Done():
		return ctx.Err()
	case <-c.done:
		return c.lost
	}
}

// suspendCapsLock turns caps lock off while text is typed, because shift cannot undo its effect on letters on spare keys. The
// returned function restores it.
func (c *Conn) suspendCapsLock() (func(), error) {
	p, err := xproto.QueryPointer(c.x, c.root).Reply()
	if err != nil {
		return nil, err
	}
	if p.Mask&xproto.KeyButMaskLock == 0 || c.keys.capsLock == 0 {
		return func() {}, nil
	}
	toggle := func() {
		c.fake(xproto.KeyPress, byte(c.keys.capsLock))
		c.fake(xproto.KeyRelease, byte(c.keys.capsLock))
	}
	toggle()
	return toggle, nil
}

// keysymsOf converts a text before any of it is typed, so that a text with an invalid character has no effect.
func keysymsOf(text string) ([]xproto.Keysym, error) {
	text = strings.ReplaceAll(text, "\r\n", "\n")
	syms := make([]xproto.Keysym, 0, len(text))
	for _, r := range text {
		sym, err := keysymOfRune(r)
		if err != nil {
			return nil, fmt.Errorf("%w: remove it, or paste the text instead", err)
		}
		syms = append(syms, sym)
	}
	return syms, nil
}
