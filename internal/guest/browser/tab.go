package browser

import (
	"context"
	"time"

	"github.com/cove-sandbox/cove/internal/guest/internal/cdp"
)

// watchTabs subscribes to the closing of tabs.
func (c *chrome) watchTabs(ctx context.Context) (*cdp.Subscription, error) {
	events := c.client.Subscribe(cdp.Filter{Session: cdp.Browser, Methods: []string{"Target.targetDestroyed"}, MaxEvents: 16})
	err := c.client.Call(ctx, cdp.Browser, "Target.setDiscoverTargets", map[string]any{"discover": true}, nil)
	if err != nil {
		events.Close()
		return nil, err
	}
	return events, nil
}

// keepTab opens a blank tab when the last one was closed: without a tab the browser has no window, and clients find no page.
func (c *chrome) keepTab(life context.Context, events *cdp.Subscription) {
	defer events.Close()
	for {
		if _, err := events.Next(life); err != nil {
			return
		}
		if c.hasNoTab(life) && c.pause(life) && c.hasNoTab(life) {
			// This fails only if the browser is ending.
			_, _ = c.client.CreateTarget(life, cdp.NewTarget{})
		}
	}
}

func (c *chrome) hasNoTab(ctx context.Context) bool {
	targets, err := c.client.Targets(ctx)
	if err != nil {
		return false
	}
	for _, t := range targets {
		if t.Type == "page" {
			return false
		}
	}
	return true
}

// pause waits for a short time and reports whether the browser still runs. The browser may be closing, or a client may be
// about to open another tab.
func (c *chrome) pause(life context.Context) bool {
	select {
	case <-time.After(150 * time.Millisecond):
		return true
	case <-c.process.Done():
	case <-life.Done():
	}
	return false
}

// awaitPainted waits until the display shows the browser.
func (c *chrome) awaitPainted(ctx context.Context) {
	select {
	case <-c.painted:
	case <-c.Done():
	case <-ctx.Done():
	}
}

// awaitFirstPaint waits until the first tab has been drawn.
func (c *chrome) awaitFirstPaint(life context.Context) {
	defer close(c.painted)
	ctx, cancel := context.WithTimeout(life, paintTime)
	defer cancel()
	for {
		tabs, err := c.pages(ctx)
		if err != nil {
			return
		}
		if len(tabs) > 0 {
			// A page that is never drawn must not block callers.
			_ = c.awaitDrawn(ctx, tabs[0].ID)
			return
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return
		}
	}
}

// awaitDrawn waits until the window manager has placed the tab's window, and the page was drawn at that size.
func (c *chrome) awaitDrawn(ctx context.Context, id string) error {
	session, err := c.client.Attach(ctx, id)
	if err != nil {
		return err
	}
	defer c.detach(session)
	if err := c.awaitMaximized(ctx, id); err != nil {
		return err
	}
	return c.client.Evaluate(ctx, session, drawnTwice, nil)
}

// drawnTwice resolves when the page was drawn, or is hidden behind another tab.
const drawnTwice = `new Promise(done => {
	if (document.hidden) done();
	document.addEventListener("visibilitychange", done, {once: true});
	requestAnimationFrame(() => requestAnimationFrame(done));
}).then(() => true)`

// placeTime is how long the window manager may take to maximize a window.
const placeTime = time.Second

func (c *chrome) awaitMaximized(ctx context.Context, id string) error {
	var w struct {
		Bounds struct {
			State string `json:"windowState"`
		} `json:"bounds"`
	}
	for begin := time.Now(); time.Since(begin) < placeTime; {
		err := c.client.Call(ctx, cdp.Browser, "Browser.getWindowForTarget", map[string]any{"targetId": id}, &w)
		if err != nil || w.Bounds.State == "maximized" {
			return err
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// detach ends a session, even after its caller's context has ended.
func (c *chrome) detach(session cdp.SessionID) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = c.client.Detach(ctx, session)
}
