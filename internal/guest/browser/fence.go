package browser

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/cdp"
)

// fence keeps the rules over the DevTools protocol where no policy can: it attaches to every page and frame before it runs,
// decides about each address that one is to be opened from, and keeps file dialogs closed.
type fence struct {
	client  *cdp.Client
	rules   rules
	dialogs bool
	busy    chan struct{} // bounds what is under way
	parts   sync.WaitGroup
}

const (
	// maxBusy is how many answers to the browser are under way at a time.
	maxBusy = 64
	// fenceTime is how long one may take; a page that is just closing answers nothing.
	fenceTime = 10 * time.Second
)

// guardRules begins to keep the rules if that is this server's task. It lasts as long as life.
func (c *chrome) guardRules(ctx, life context.Context, set settings) error {
	if c.keeper != byDevtools {
		return nil
	}
	list, err := newRules(set)
	if err != nil {
		return err
	}
	f := &fence{client: c.client, rules: list, dialogs: c.s.dialogs(set), busy: make(chan struct{}, maxBusy)}
	events := c.client.Subscribe(cdp.Filter{
		AllSessions: true, MaxEvents: 1 << 16,
		Methods: []string{"Target.attachedToTarget", "Fetch.requestPaused", "Page.frameNavigated"},
	})
	if err := f.attach(ctx, cdp.Browser); err != nil {
		events.Close()
		return err
	}
	c.parts.Go(func() {
		defer f.parts.Wait()
		defer events.Close()
		for {
			e, err := events.Next(life)
			if err != nil {
				return
			}
			if events.Dropped() > 0 {
				// A page whose announcement was lost would wait for ever.
				c.fail(errFence)
				return
			}
			f.handle(life, e)
		}
	})
	return nil
}

var errFence = errors.New("more pages were opened at once than rules could be kept for")

// attach lets the browser announce each page or frame below a session, and hold it until it has been dealt with.
func (f *fence) attach(ctx context.Context, session cdp.SessionID) error {
	return f.client.Call(ctx, session, "Target.setAutoAttach", map[string]any{
		"autoAttach": true, "waitForDebuggerOnStart": true, "flatten": true,
		"filter": []map[string]any{{"type": "page"}, {"type": "iframe"}, {"exclude": true}},
	}, nil)
}

// handle deals with an event on a goroutine of its own: the browser's answer to one may wait for another.
func (f *fence) handle(life context.Context, e cdp.Event) {
	select {
	case f.busy <- struct{}{}:
	case <-life.Done():
		return
	}
	f.parts.Go(func() {
		defer func() { <-f.busy }()
		ctx, cancel := context.WithTimeout(life, fenceTime)
		defer cancel()
		// An error means that the page is gone.
		switch e.Method {
		case "Target.attachedToTarget":
			var p struct {
				SessionID cdp.SessionID `json:"sessionId"`
				Target    cdp.Target    `json:"targetInfo"`
			}
			if e.Decode(&p) == nil {
				_ = f.admit(ctx, p.SessionID, p.Target)
			}
		case "Fetch.requestPaused":
			_ = f.decide(ctx, e)
		case "Page.frameNavigated":
			_ = f.leave(ctx, e)
		}
	})
}

// admit sets a page up and lets it run. Only what the browser itself answers may be waited for before that: the page cannot
// answer until it runs.
func (f *fence) admit(ctx context.Context, session cdp.SessionID, t cdp.Target) error {
	err := f.attach(ctx, session)
	if err == nil && len(f.rules.block) > 0 {
		err = f.client.Call(ctx, session, "Fetch.enable", map[string]any{
			"patterns": []map[string]any{{"urlPattern": "*", "resourceType": "Document"}},
		}, nil)
	}
	if err != nil {
		return err // it is gone
	}
	if err := f.client.Call(ctx, session, "Runtime.runIfWaitingForDebugger", nil, nil); err != nil {
		return err
	}
	if !f.dialogs {
		// Frames have no such setting of their own.
		_ = f.client.Call(ctx, session, "Page.setInterceptFileChooserDialog", map[string]any{"enabled": true, "cancel": true}, nil)
	}
	if t.Type != "page" || len(f.rules.block) == 0 {
		return nil
	}
	// What does not come over the network, such as chrome://settings, is seen only when it is there, and a page that was open
	// before may show what it must not.
	if err := f.client.Call(ctx, session, "Page.enable", nil, nil); err != nil {
		return err
	}
	var now struct {
		Target cdp.Target `json:"targetInfo"`
	}
	err = f.client.Call(ctx, cdp.Browser, "Target.getTargetInfo", map[string]any{"targetId": t.ID}, &now)
	if err == nil && f.rules.blocks(now.Target.URL) {
		err = f.away(ctx, session)
	}
	return err
}

// decide answers whether a page or frame may be opened from an address.
func (f *fence) decide(ctx context.Context, e cdp.Event) error {
	var p struct {
		ID      string `json:"requestId"`
		Request struct {
			URL string `json:"url"`
		} `json:"request"`
	}
	if err := e.Decode(&p); err != nil {
		return err
	}
	if f.rules.blocks(p.Request.URL) {
		return f.client.Call(ctx, e.Session, "Fetch.failRequest", map[string]any{"requestId": p.ID, "errorReason": "BlockedByClient"}, nil)
	}
	return f.client.Call(ctx, e.Session, "Fetch.continueRequest", map[string]any{"requestId": p.ID}, nil)
}

// leave takes a tab away from a page that it should not show.
func (f *fence) leave(ctx context.Context, e cdp.Event) error {
	var p struct {
		Frame struct {
			URL         string `json:"url"`
			ParentID    string `json:"parentId"`
			Unreachable string `json:"unreachableUrl"`
		} `json:"frame"`
	}
	if err := e.Decode(&p); err != nil || p.Frame.ParentID != "" || p.Frame.Unreachable != "" || !f.rules.blocks(p.Frame.URL) {
		return err
	}
	return f.away(ctx, e.Session)
}

func (f *fence) away(ctx context.Context, session cdp.SessionID) error {
	return f.client.Call(ctx, session, "Page.navigate", map[string]any{"url": "about:blank"}, nil)
}
