package locate

import (
	"context"
	"encoding/json"
	"time"

	"github.com/cove-sandbox/cove/internal/guest/internal/cdp"
	"github.com/cove-sandbox/cove/internal/guest/internal/tab"
)

// Drag drags one element onto another, with the events that pages for drag and drop expect.
func Drag(ctx context.Context, t *tab.Tab, from, to Target) error {
	if err := t.Call(ctx, "Input.setInterceptDrags", map[string]any{"enabled": true}, nil); err != nil {
		return err
	}
	defer func() {
		_ = t.Call(context.WithoutCancel(ctx), "Input.setInterceptDrags", map[string]any{"enabled": false}, nil)
	}()
	events := t.Browser().Client().Subscribe(cdp.Filter{Session: t.Session(), Methods: []string{"Input.dragIntercepted"}})
	defer events.Close()
	begin, err := prepare(ctx, t, from, spec{Need: clickable, Strict: true})
	if err != nil {
		return err
	}
	a := Point{X: begin.X, Y: begin.Y}
	if _, _, err := OffsetOf(ctx, begin.Frame, &a); err != nil {
		return err
	}
	end, err := prepare(ctx, t, to, spec{Need: hoverable, Strict: true})
	if err != nil {
		return err
	}
	b := Point{X: end.X, Y: end.Y}
	if _, _, err := OffsetOf(ctx, end.Frame, &b); err != nil {
		return err
	}
	middle := Point{X: (a.X + b.X) / 2, Y: (a.Y + b.Y) / 2}
	held := func(p Point) mouseEvent {
		return mouseEvent{Type: "mouseMoved", X: p.X, Y: p.Y, Button: "left", Buttons: 1}
	}
	if err := send(ctx, t, mouseEvent{Type: "mouseMoved", X: a.X, Y: a.Y}, mouseEvent{Type: "mousePressed", X: a.X,
		Y: a.Y, Button: "left", Buttons: 1, ClickCount: 1}, held(Point{X: a.X + 6, Y: a.Y + 6}), held(middle)); err != nil {
		return err
	}
	if err := Run(ctx, begin.Frame, nil, "afterFrame"); err != nil && !tab.IsStale(err) {
		return err
	}
	data, dragged := pendingDrag(ctx, events)
	if !dragged { // the page handles mouse events itself
		if err := send(ctx, t, held(b), mouseEvent{Type: "mouseReleased", X: b.X, Y: b.Y, Button: "left", ClickCount: 1}); err != nil {
			return err
		}
		return Settle(ctx, t)
	}
	for _, kind := range []string{"dragEnter", "dragOver", "drop"} {
		err := t.Call(ctx, "Input.dispatchDragEvent", map[string]any{"type": kind, "x": b.X, "y": b.Y, "data": data}, nil)
		if err != nil {
			return err
		}
	}
	return Settle(ctx, t)
}

func pendingDrag(ctx context.Context, events *cdp.Subscription) (json.RawMessage, bool) {
	ctx, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	e, err := events.Next(ctx)
	if err != nil {
		return nil, false
	}
	var p struct {
		Data json.RawMessage `json:"data"`
	}
	return p.Data, e.Decode(&p) == nil
}
