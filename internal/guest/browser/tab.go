package browser

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/cove-sandbox/cove/internal/cdp"
)

// page is a tab as the browser lists it.
type page struct {
	ID   string `json:"id"`
	Type string `json:"type"`
	URL  string `json:"url"`
}

// maxList bounds the browser's answer about its tabs; addresses can be long.
const maxList = 64 << 20

// pages lists the tabs, the one that was used last first. Only this list comes in that order.
func (c *chrome) pages(ctx context.Context) ([]page, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+c.host()+"/json/list", nil)
	if err != nil {
		return nil, err
	}
	resp, err := c.s.gate.RoundTrip(req)
	if err != nil {
		return nil, fmt.Errorf("list tabs: %w", err)
	}
	defer resp.Body.Close()
	var all, tabs []page
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxList)).Decode(&all); err != nil {
		return nil, fmt.Errorf("list tabs: %w", err)
	}
	for _, p := range all {
		if p.Type == "page" {
			tabs = append(tabs, p)
		}
	}
	return tabs, nil
}

// watchTabs asks to be told when tabs come and go.
func (c *chrome) watchTabs(ctx context.Context) (*cdp.Subscription, error) {
	events := c.client.Subscribe(cdp.Filter{Session: cdp.Browser, Methods: []string{"Target.targetDestroyed"}, MaxEvents: 16})
	err := c.client.Call(ctx, cdp.Browser, "Target.setDiscoverTargets", map[string]any{"discover": true}, nil)
	if err != nil {
		events.Close()
		return nil, err
	}
	return events, nil
}

// keepTab opens a blank tab when the last one was closed: a browser without any has no window, and clients that look for a
// page find none.
func (c *chrome) keepTab(life context.Context, events *cdp.Subscription) {
	defer events.Close()
	for {
		if _, err := events.Next(life); err != nil {
			return
		}
		if c.tabless(life) && c.settled(life) && c.tabless(life) {
			// It fails when the browser is going too, and then it does not matter.
			_, _ = c.client.CreateTarget(life, cdp.NewTarget{})
		}
	}
}

func (c *chrome) tabless(ctx context.Context) bool {
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

// settled waits a moment: when the browser itself is being closed, or its client is just about to open the next tab, there
// is nothing to do.
func (c *chrome) settled(life context.Context) bool {
	select {
	case <-time.After(150 * time.Millisecond):
		return true
	case <-c.process.Done():
	case <-life.Done():
	}
	return false
}

// awaitPainted waits until the first look at the display shows the browser.
func (c *chrome) awaitPainted(ctx context.Context) {
	select {
	case <-c.painted:
	case <-c.Done():
	case <-ctx.Done():
	}
}

// paint waits until the first tab has been drawn.
func (c *chrome) paint(life context.Context) {
	defer close(c.painted)
	ctx, cancel := context.WithTimeout(life, paintTime)
	defer cancel()
	for {
		tabs, err := c.pages(ctx)
		if err != nil {
			return
		}
		if len(tabs) > 0 {
			// A page that does not want to be drawn keeps nobody from looking.
			_ = c.drawn(ctx, tabs[0].ID)
			return
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return
		}
	}
}

// drawn waits until the window manager has given the tab's window its place, and the page was drawn at that size.
func (c *chrome) drawn(ctx context.Context, id string) error {
	session, err := c.client.Attach(ctx, id)
	if err != nil {
		return err
	}
	defer c.detach(session)
	if err := c.maximised(ctx, id); err != nil {
		return err
	}
	return c.client.Evaluate(ctx, session, drawnTwice, nil)
}

// drawnTwice resolves when the page was drawn, or is behind another tab and will not be.
const drawnTwice = `new Promise(done => {
	if (document.hidden) done();
	document.addEventListener("visibilitychange", done, {once: true});
	requestAnimationFrame(() => requestAnimationFrame(done));
}).then(() => true)`

// placeTime is how long the window manager may take; without one the window stays as it is.
const placeTime = time.Second

func (c *chrome) maximised(ctx context.Context, id string) error {
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

// detach ends a session, also after its caller's time is up.
func (c *chrome) detach(session cdp.SessionID) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = c.client.Detach(ctx, session)
}
