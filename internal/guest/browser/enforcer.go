package browser

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/guest/internal/cdp"
)

// enforcer enforces the rules over the DevTools protocol where policies cannot. It attaches to every page and frame before it
// runs, allows or blocks each navigation, and cancels file dialogs.
type enforcer struct {
	client  *cdp.Client
	rules   rules
	dialogs bool
	busy    chan struct{} // limits concurrent handlers
	loops   sync.WaitGroup
}

const (
	// maxBusy is the maximum number of concurrent handlers.
	maxBusy = 64
	// enforceTime is the timeout of a handler; a closing page never responds.
	enforceTime = 10 * time.Second
)

// enforceRules begins to enforce the rules if no policy does, until life ends.
func (c *chrome) enforceRules(ctx, life context.Context, set setup) error {
	if c.enforcedBy != byDevtools {
		return nil
	}
	list, err := newRules(set)
	if err != nil {
		return err
	}
	f := &enforcer{client: c.client, rules: list, dialogs: set.fileDialogs(), busy: make(chan struct{}, maxBusy)}
	events := c.client.Subscribe(cdp.Filter{
		AllSessions: true, MaxEvents: 1 << 16,
		Methods: []string{"Target.attachedToTarget", "Fetch.requestPaused", "Page.frameNavigated"},
	})
	if err := f.attach(ctx, cdp.Browser); err != nil {
		events.Close()
		return err
	}
	c.loops.Go(func() {
		defer f.loops.Wait()
		defer events.Close()
		for {
			e, err := events.Next(life)
			if err != nil {
				return
			}
			if events.Dropped() > 0 {
				// A page whose announcement was lost would wait forever.
				c.End(errTooManyPages)
				return
			}
			f.handle(life, e)
		}
	})
	return nil
}

var errTooManyPages = errors.New("too many pages were opened at once to enforce the rules")

// attach makes the browser announce each page or frame below a session, and pause it until it has been handled.
func (f *enforcer) attach(ctx context.Context, session cdp.SessionID) error {
	return f.client.Call(ctx, session, "Target.setAutoAttach", map[string]any{
		"autoAttach": true, "waitForDebuggerOnStart": true, "flatten": true,
		"filter": []map[string]any{{"type": "page"}, {"type": "iframe"}, {"exclude": true}},
	}, nil)
}

// handle handles an event on its own goroutine: the browser's response to one may depend on another.
func (f *enforcer) handle(life context.Context, e cdp.Event) {
	select {
	case f.busy <- struct{}{}:
	case <-life.Done():
		return
	}
	f.loops.Go(func() {
		defer func() { <-f.busy }()
		ctx, cancel := context.WithTimeout(life, enforceTime)
		defer cancel()
		// An error means that the page has closed.
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
			_ = f.leaveBlocked(ctx, e)
		}
	})
}

// admit sets up a page and lets it run. Until then only the browser itself responds; the page cannot.
func (f *enforcer) admit(ctx context.Context, session cdp.SessionID, t cdp.Target) error {
	err := f.attach(ctx, session)
	if err == nil && len(f.rules.block) > 0 {
		err = f.client.Call(ctx, session, "Fetch.enable", map[string]any{
			"patterns": []map[string]any{{"urlPattern": "*", "resourceType": "Document"}},
		}, nil)
	}
	if err != nil {
		return err // it has closed
	}
	if err := f.client.Call(ctx, session, "Runtime.runIfWaitingForDebugger", nil, nil); err != nil {
		return err
	}
	if !f.dialogs {
		// Frames do not have such a setting.
		_ = f.client.Call(ctx, session, "Page.setInterceptFileChooserDialog", map[string]any{"enabled": true, "cancel": true}, nil)
	}
	if t.Type != "page" || len(f.rules.block) == 0 {
		return nil
	}
	// A page that does not come over the network, such as chrome://settings, is noticed only after it has loaded, and a page
	// that was open before may be blocked by now.
	if err := f.client.Call(ctx, session, "Page.enable", nil, nil); err != nil {
		return err
	}
	var now struct {
		Target cdp.Target `json:"targetInfo"`
	}
	err = f.client.Call(ctx, cdp.Browser, "Target.getTargetInfo", map[string]any{"targetId": t.ID}, &now)
	if err == nil && f.rules.blocks(now.Target.URL) {
		err = f.openBlank(ctx, session)
	}
	return err
}

// decide allows or blocks a navigation.
func (f *enforcer) decide(ctx context.Context, e cdp.Event) error {
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

// leaveBlocked navigates a tab away from a blocked page.
func (f *enforcer) leaveBlocked(ctx context.Context, e cdp.Event) error {
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
	return f.openBlank(ctx, e.Session)
}

func (f *enforcer) openBlank(ctx context.Context, session cdp.SessionID) error {
	return f.client.Call(ctx, session, "Page.navigate", map[string]any{"url": "about:blank"}, nil)
}
