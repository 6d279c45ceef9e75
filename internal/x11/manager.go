package x11

import (
	"context"
	"errors"
	"time"

	"github.com/jezek/xgb"
	"github.com/jezek/xgb/xproto"
)

// managerTime is how long a window manager may take to pass a button on. One that was killed answers nothing.
const managerTime = 500 * time.Millisecond

// passManager returns when the window manager has let through the buttons that were pressed so far. Window managers take
// hold of them, to raise and focus what was clicked, and hand them on afterwards; keys go past them meanwhile and would reach
// the application before the click that they are meant for. X has no request for this either: a question about frames is
// answered in turn. It takes some milliseconds, so it is asked only when a key follows a button.
func (c *Conn) passManager(ctx context.Context) error {
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

// managerAnswers tells whether there is a window manager that knows the question.
func (c *Conn) managerAnswers() (bool, error) {
	const most = 1024
	p, err := xproto.GetProperty(c.x, false, c.root, c.atoms.supported, xproto.AtomAtom, 0, most).Reply()
	if err != nil {
		return false, err
	}
	for v := p.Value; p.Format == 32 && len(v) >= 4; v = v[4:] {
		if xproto.Atom(xgb.Get32(v)) == c.atoms.askFrame {
			return true, nil
		}
	}
	return false, nil
}
