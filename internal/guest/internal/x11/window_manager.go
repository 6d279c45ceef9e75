package x11

import (
	"context"
	"errors"
	"time"

	"github.com/jezek/xgb"
	"github.com/jezek/xgb/xproto"
)

// managerTime is how long a window manager may take to forward a button press.
const managerTime = 10 * time.Second

// awaitManager returns when the window manager has forwarded all earlier button presses. Window managers grab them, to raise and
// focus the clicked window, and then forward them; keys bypass the window manager and would reach the application before the
// click. X has no request for this, but the window manager handles a query of the frame size in order. This takes some
// milliseconds, so it happens only when a key follows a button.
func (c *Conn) awaitManager(ctx context.Context) error {
	if !c.held.recent {
		return nil
	}
	c.held.recent = false
	supported, err := c.supportsFrameQuery()
	if err != nil || !supported {
		return err
	}
	response := c.expectProperty(c.atoms.frame, xproto.PropertyNewValue)
	defer c.forget(response)
	query := xproto.ClientMessageEvent{
		Format: 32, Window: c.window, Type: c.atoms.askFrame, Data: xproto.ClientMessageDataUnionData32New(make([]uint32, 5)),
	}
	xproto.SendEvent(c.x, false, c.root, xproto.EventMaskSubstructureNotify|xproto.EventMaskSubstructureRedirect, string(query.Bytes()))
	wait, cancel := context.WithTimeout(ctx, managerTime)
	defer cancel()
	if _, err = c.await(wait, response); errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return nil
	}
	return err
}

// supportsFrameQuery reports whether a window manager runs that supports the query.
func (c *Conn) supportsFrameQuery() (bool, error) {
	const maxAtoms = 1024
	supported := xproto.GetProperty(c.x, false, c.root, c.atoms.supported, xproto.AtomAtom, 0, maxAtoms)
	check := xproto.GetProperty(c.x, false, c.root, c.atoms.managerCheck, xproto.AtomWindow, 0, 1)
	p, err := supported.Reply()
	if err != nil {
		return false, err
	}
	own, err := check.Reply()
	if err != nil || own.Format != 32 || len(own.Value) < 4 {
		return false, err
	}
	// The property of a window manager outlives it; its window does not.
	if _, err := xproto.GetWindowAttributes(c.x, xproto.Window(xgb.Get32(own.Value))).Reply(); err != nil {
		return false, ignoreX(err)
	}
	for v := p.Value; p.Format == 32 && len(v) >= 4; v = v[4:] {
		if xproto.Atom(xgb.Get32(v)) == c.atoms.askFrame {
			return true, nil
		}
	}
	return false, nil
}
