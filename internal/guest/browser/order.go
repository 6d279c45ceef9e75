package browser

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/cove-sandbox/cove/internal/guest/internal/cdp"
)

// target is an entry of the browser's list of targets.
type target struct {
	ID     string `json:"targetId"`
	Type   string `json:"type"`
	URL    string `json:"url"`
	Title  string `json:"title"`
	Parent string `json:"parentId"`
	Strip  *struct {
		Active bool `json:"tabActive"`
	} `json:"embedderData"` // only of tabs
}

// tabOrder lists targets, most recently used page first. The protocol has no such order: it only reports the front tab of
// each window, and a tab is a different target than its page. So the order is tracked from one list to the next.
type tabOrder struct {
	client *cdp.Client   // not shared, because it receives events of its sessions
	turn   chan struct{} // held while a list is made; guards the rest
	last   uint64        // number of times that a tab came to the front
	used   map[string]uint64
	front  map[string]bool   // tabs in front
	tabOf  map[string]string // tabs by their page
}

func newTabOrder(ctx context.Context, pipe *cdp.Pipe) (*tabOrder, error) {
	client, err := pipe.Connect(ctx, cdp.Config{})
	if err != nil {
		return nil, err
	}
	return &tabOrder{
		client: client, turn: make(chan struct{}, 1),
		used: map[string]uint64{}, front: map[string]bool{}, tabOf: map[string]string{},
	}, nil
}

// pages lists the pages, most recently used first.
func (c *chrome) pages(ctx context.Context) ([]target, error) {
	all, err := c.order.list(ctx)
	return slices.DeleteFunc(all, func(t target) bool { return t.Type != "page" }), err
}

// list lists all targets except tabs: pages, most recently used first, frames, workers.
func (o *tabOrder) list(ctx context.Context) ([]target, error) {
	select {
	case o.turn <- struct{}{}:
		defer func() { <-o.turn }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	var r struct {
		Targets []target `json:"targetInfos"`
	}
	filter := []map[string]any{{"type": "browser", "exclude": true}, {}}
	if err := o.client.Call(ctx, cdp.Browser, "Target.getTargets", map[string]any{"filter": filter}, &r); err != nil {
		return nil, fmt.Errorf("list tabs: %w", err)
	}
	if err := o.update(ctx, r.Targets); err != nil {
		return nil, fmt.Errorf("list tabs: %w", err)
	}
	all := slices.DeleteFunc(r.Targets, func(t target) bool { return t.Type == "tab" })
	slices.SortStableFunc(all, func(a, b target) int { return cmp.Compare(o.used[o.tabOf[b.ID]], o.used[o.tabOf[a.ID]]) })
	return all, nil
}

// update notes which tabs came to the front since the last list, and which pages they show.
func (o *tabOrder) update(ctx context.Context, all []target) error {
	listed := map[string]bool{}
	for _, t := range all {
		listed[t.ID] = true
	}
	maps.DeleteFunc(o.tabOf, func(page, tab string) bool { return !listed[page] || !listed[tab] })
	maps.DeleteFunc(o.used, func(tab string, _ uint64) bool { return !listed[tab] })
	maps.DeleteFunc(o.front, func(tab string, _ bool) bool { return !listed[tab] })
	shown := map[string]bool{}
	for _, tab := range o.tabOf {
		shown[tab] = true
	}
	for _, t := range all {
		if t.Strip == nil { // not in a window
			continue
		}
		if t.Strip.Active && !o.front[t.ID] {
			o.last++
			o.used[t.ID] = o.last
		}
		o.front[t.ID] = t.Strip.Active
		if t.Strip.Active && !shown[t.ID] {
			if err := o.findPage(ctx, t.ID); err != nil {
				return err
			}
		}
	}
	return nil
}

// findPage finds the page of a tab, which is only reported in a session with the tab.
func (o *tabOrder) findPage(ctx context.Context, tab string) error {
	session, err := o.client.Attach(ctx, tab)
	if err != nil {
		return ignoreClosed(err)
	}
	events := o.client.Subscribe(cdp.Filter{Session: session, Methods: []string{"Target.attachedToTarget"}})
	defer events.Close()
	err = o.client.Call(ctx, session, "Target.setAutoAttach", map[string]any{
		"autoAttach": true, "waitForDebuggerOnStart": false, "flatten": true, "filter": []map[string]any{{"type": "page"}},
	}, nil)
	if err != nil {
		return ignoreClosed(err)
	}
	// The browser has sent the events before its reply.
	arrived, cancel := context.WithCancel(ctx)
	cancel()
	for {
		e, err := events.Next(arrived)
		if err != nil {
			break
		}
		var p struct {
			Target struct {
				ID      string `json:"targetId"`
				Subtype string `json:"subtype"` // a page that is loaded in advance has one
			} `json:"targetInfo"`
		}
		if e.Decode(&p) == nil && p.Target.Subtype == "" {
			o.tabOf[p.Target.ID] = tab
		}
	}
	return ignoreClosed(o.client.Detach(ctx, session))
}

// ignoreClosed ignores the error of a tab that was closed.
func ignoreClosed(err error) error {
	if _, refused := errors.AsType[*cdp.Error](err); refused || errors.Is(err, cdp.ErrDetached) {
		return nil
	}
	return err
}
