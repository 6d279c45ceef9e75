package x11

import (
	"context"
	"errors"
	"time"

	"github.com/jezek/xgb"
	"github.com/jezek/xgb/xproto"
)

// managerTime is how long a living window manager may take to forward a button press.
const managerTime = 10 * time.Second

// awaitManager returns when the window manager has forwarded all button presses so far. Window managers grab them, to raise
// and focus the clicked window, and forward them afterwards; keys bypass the window manager and would reach the application
// before the click. X has no request for this, but the window manager handles a query of the frame size in order. This
// takes some milliseconds, so it happens only when a key follows a button.
func (c *Conn) awaitManager(ctx context.Context) error {
	if !c.held.recent {
		return nil
	}
	c.held.recent = false
	asked, err := c.managerAnswers()
	if err != nil || !asked {
		return err
	}
	answer := c.expectProperty(c.atoms.frame, xproto.PropertyNewValue)
	defer c.forget(answer)
	question := xproto.ClientMessageEvent{
		Format: 32, Window: c.window, Type: c.atoms.askFrame, Data: xproto.ClientMessageDataUnionData32New(make([]uint32, 5)),
	}
	xproto.SendEvent(c.x, false, c.root, xproto.EventMaskSubstructureNotify|xproto.EventMaskSubstructureRedirect, string(question.Bytes()))
	wait, cancel := context.WithTimeout(ctx, managerTime)
	defer cancel()
	if _, err = c.await(wait, answer); errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return nil
	}
	return err
}

// managerAnswers reports whether a window manager is there that supports the query.
func (c *Conn) managerAnswers() (bool, error) {
	const most = 1024
	supported := xproto.GetProperty(c.x, false, c.root, c.atoms.supported, xproto.AtomAtom, 0, most)
	check := xproto.GetProperty(c.x, false, c.root, c.atoms.managerCheck, xproto.AtomWindow, 0, 1)
	p, err := supported.Reply()
	if err != nil {
		return false, err
	}
	own, err := check.Reply()
	if err != nil || own.Format != 32 || len(own.Value) < 4 {
		return false, err
	}
	// What a window manager says of itself outlives it; its own window does not.
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
