package x11

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/jezek/xgb"
	"github.com/jezek/xgb/xproto"
)

// errNoResponse means that an application supports pings but does not respond.
var errNoResponse = errors.New("the focused application does not respond; wait until it does, or restart it")

// responseTime is how long an application may take to handle earlier events.
const responseTime = 15 * time.Second

// Settle returns when the focused application has handled all its pending events. X has no such request, but an application
// handles the ping of window managers after those events. For an application without ping support, it waits for
// Config.Settle.
func (c *Conn) Settle(ctx context.Context) error {
	return c.inject(ctx, "wait for application", func() error { return c.settle(ctx) })
}

func (c *Conn) settle(ctx context.Context) error {
	target, err := c.pingTarget()
	if err != nil {
		return err
	}
	if target == 0 {
		if err := c.roundTrip(); err != nil {
			return err
		}
		return pause(ctx, c, c.cfg.Settle)
	}
	nonce := c.nonce.Add(1)
	data := []uint32{uint32(c.atoms.ping), xproto.TimeCurrentTime, uint32(target), nonce, uint32(c.window)}
	pong := c.expect(func(ev xgb.Event) bool {
		m, ok := ev.(xproto.ClientMessageEvent)
		return ok && m.Format == 32 && m.Type == c.atoms.protocols && slices.Equal(m.Data.Data32, data)
	})
	defer c.forget(pong)
	ping := xproto.ClientMessageEvent{
		Format: 32, Window: target, Type: c.atoms.protocols, Data: xproto.ClientMessageDataUnionData32New(data),
	}
	xproto.SendEvent(c.x, false, target, xproto.EventMaskNoEvent, string(ping.Bytes()))
	wait, cancel := context.WithTimeoutCause(ctx, responseTime, errNoResponse)
	defer cancel()
	if _, err = c.await(wait, pong); errors.Is(context.Cause(wait), errNoResponse) && err != nil {
		return errNoResponse
	}
	return err
}

// pingTarget returns the window to ping: the focused one, or its nearest ancestor that supports the protocol, or zero if there
// is none.
func (c *Conn) pingTarget() (xproto.Window, error) {
	focus, err := xproto.GetInputFocus(c.x).Reply()
	if err != nil {
		return 0, err
	}
	w := focus.Focus
	if w == xproto.InputFocusPointerRoot {
		// Keys go to the window below the pointer.
		p, err := xproto.QueryPointer(c.x, c.root).Reply()
		if err != nil {
			return 0, err
		}
		w = p.Child
	}
	const maxDepth = 64 // clients may change the tree during the loop
	for range maxDepth {
		if w <= xproto.InputFocusPointerRoot || w == c.root {
			return 0, nil
		}
		if ok, err := c.supportsPing(w); err != nil || ok {
			return w, err
		}
		tree, err := xproto.QueryTree(c.x, w).Reply()
		if err != nil {
			return 0, ignoreX(err)
		}
		w = tree.Parent
	}
	return 0, nil
}

func (c *Conn) supportsPing(w xproto.Window) (bool, error) {
	p, err := xproto.GetProperty(c.x, false, w, c.atoms.protocols, xproto.AtomAtom, 0, 64).Reply()
	if err != nil {
		return false, ignoreX(err)
	}
	if p.Format != 32 {
		return false, nil
	}
	for v := p.Value; len(v) >= 4; v = v[4:] {
		if xproto.Atom(xgb.Get32(v)) == c.atoms.ping {
			return true, nil
		}
	}
	return false, nil
}

// ignoreX drops errors of the server, such as those about a closed window, and keeps errors of the connection.
func ignoreX(err error) error {
	var xerr xgb.Error
	if errors.As(err, &xerr) {
		return nil
	}
	return err
}
