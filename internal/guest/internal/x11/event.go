package x11

import (
	"context"
	"slices"
	"sync"

	"github.com/jezek/xgb"
	"github.com/jezek/xgb/xproto"
)

// pump receives events until the connection ends. It never blocks on anything else, because xgb stops reading responses when
// its event queue is full.
func (c *Conn) pump() {
	defer close(c.pumped)
	for {
		ev, xerr := c.x.WaitForEvent()
		if ev == nil && xerr == nil {
			c.end(c.wire.cause())
			return
		}
		if ev == nil {
			continue // error of an unchecked request, such as a response to a closed window
		}
		switch e := ev.(type) {
		case xproto.MappingNotifyEvent:
			c.keys.stale.Store(true)
		case xproto.SelectionRequestEvent, xproto.SelectionClearEvent, xproto.DestroyNotifyEvent:
			c.sel.enqueue(ev)
		case xproto.PropertyNotifyEvent:
			if e.State == xproto.PropertyDelete {
				c.sel.enqueue(ev)
			}
		}
		c.waiters.offer(ev)
	}
}

// waiters are calls that wait for an event.
type waiters struct {
	mu   sync.Mutex
	list []*waiter
}

type waiter struct {
	match func(xgb.Event) bool
	got   chan xgb.Event
}

// expect registers a waiter before the request that causes the event is sent; the caller must call forget.
func (c *Conn) expect(match func(xgb.Event) bool) *waiter {
	w := &waiter{match: match, got: make(chan xgb.Event, 1)}
	c.waiters.mu.Lock()
	defer c.waiters.mu.Unlock()
	c.waiters.list = append(c.waiters.list, w)
	return w
}

func (c *Conn) forget(w *waiter) {
	c.waiters.mu.Lock()
	defer c.waiters.mu.Unlock()
	c.waiters.list = slices.DeleteFunc(c.waiters.list, func(o *waiter) bool { return o == w })
}

// offer delivers ev to the matching waiters. Each keeps its first match.
func (ws *waiters) offer(ev xgb.Event) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	for _, w := range ws.list {
		if w.match(ev) {
			select {
			case w.got <- ev:
			default:
			}
		}
	}
}

// await waits for the event.
func (c *Conn) await(ctx context.Context, w *waiter) (xgb.Event, error) {
	select {
	case ev := <-w.got:
		return ev, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-c.done:
		return nil, c.lost
	}
}
