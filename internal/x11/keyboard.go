package x11

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jezek/xgb/xproto"
)

// heldKey is a key that is down.
type heldKey struct {
	code    xproto.Keycode
	sym     xproto.Keysym
	restore *spareKey // what the key means otherwise, if it was borrowed
}

// KeyDown presses a key by its pyautogui name (see KeyNames) or by the one character it makes, and leaves it down until
// KeyUp, ReleaseAll or Close. Shift is pressed around it where the character needs it.
func (c *Conn) KeyDown(ctx context.Context, name string) error {
	return c.inject(ctx, "press key", func() error { return c.keyDown(ctx, name) })
}

// KeyUp releases a key. One that is not down stays so.
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
		// Whatever happened, no key stays down.
		for i := down - 1; i >= 0; i-- {
			err = errors.Join(err, c.keyUp(ctx, names[i]))
		}
		return err
	})
}

// Type enters text through the keyboard, any of Unicode; a line break is the enter key. Keys that are held act on it as they
// would for a person. interval is the pause after each character. When ctx ends, typing stops in between.
func (c *Conn) Type(ctx context.Context, text string, interval time.Duration) error {
	return c.inject(ctx, "type text", func() error { return c.typeText(ctx, text, interval) })
}

func (c *Conn) keyDown(ctx context.Context, name string) error {
	if err := c.passManager(ctx); err != nil {
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
		spare, err := c.borrow(ctx, []xproto.Keysym{sym})
		if err != nil {
			return err
		}
		at.code, key.restore = spare[0].code, &spare[0]
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
		if key.restore != nil {
			return c.giveBack(ctx, []spareKey{*key.restore})
		}
		return nil
	}
	// Not ours; a viewer may hold it. Only keys of the keymap can be meant.
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

// stroke sends the event of one key, with shift around it where the keysym lies on the key's second level. The caller's
// own shift is left alone. On the keypad the lock takes the place of shift: with that, Chromium sees arrows for digits.
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
	if err := c.passManager(ctx); err != nil {
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
		n, missing := c.keys.batch(syms)
		if n == 0 {
			return errNoSpareKey
		}
		if err := c.typeBatch(ctx, syms[:n], missing, interval); err != nil {
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

// typeBatch types keysyms of which the missing ones are borrowed meanwhile.
func (c *Conn) typeBatch(ctx context.Context, syms, missing []xproto.Keysym, interval time.Duration) (err error) {
	lent := map[xproto.Keysym]place{}
	if len(missing) > 0 {
		spare, err := c.borrow(ctx, missing)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, c.giveBack(ctx, spare)) }()
		for i, sym := range missing {
			lent[sym] = place{code: spare[i].code}
		}
	}
	for _, sym := range syms {
		at, ok := lent[sym]
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

// pause waits after a character, and notices the end of ctx even if there is no wait.
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

// suspendCapsLock turns the lock off while text is typed, because it would change letters on borrowed keys in ways that
// shift cannot undo. The function it returns turns it on again.
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

// keysymsOf resolves a text before anything of it is typed, so that a character without a key changes nothing.
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
