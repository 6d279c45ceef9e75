// Package tab models the tabs of a running browser over the DevTools protocol.
//
// It owns one connection and attaches to every page and frame before the first script runs, so that the model is complete:
// frames and their script contexts, navigations, dialogs, console, requests, downloads and crashes. Package locate finds
// elements and acts on them.
package tab

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/guest/internal/cdp"
)

// Limits of what is stored about a browser.
const (
	maxTabs      = 200 // further tabs that pages open are closed
	maxConsole   = 1000
	maxDialogs   = 100
	maxDownloads = 500
	maxOrigins   = 1000
	maxText      = 16 << 10 // of one console entry
)

const (
	// replyTime is the timeout of commands without a caller.
	replyTime = 20 * time.Second
	// attachTime is how long a new connection waits for its pages. Some may not be loaded.
	attachTime = 2 * time.Second
)

// Config of the connection.
type Config struct {
	Connect func(ctx context.Context, c cdp.Config) (*cdp.Client, error)
	Script  string // runs in the isolated world of every document, before the page's own scripts
	Log     *slog.Logger
}

// World is the name of the isolated world.
const World = "cove"

// Browser is the connection to a browser and the model of its tabs.
type Browser struct {
	cfg    Config
	client *cdp.Client
	life   context.Context
	cancel context.CancelFunc
	work   sync.WaitGroup

	mu        sync.Mutex
	changed   chan struct{} // closed and replaced on every change
	tabs      []*Tab        // in the order in which they were opened
	sessions  map[cdp.SessionID]*session
	downloads []*Download
	origins   []string // whose pages were shown, oldest first
	policy    DialogPolicy
	rules     Rules
	scripts   []string          // further scripts of every document
	contexts  map[string]string // names of isolated contexts by their id

	permissions []Permission
	position    *Position
	positioned  bool // position is in effect, even if it is nil
}

// session is a connection to one page or out-of-process frame.
type session struct {
	id     cdp.SessionID
	target string
	tab    *Tab
}

// Open connects to the browser and attaches to all its pages.
func Open(ctx context.Context, c Config) (*Browser, error) {
	b := &Browser{cfg: c, changed: make(chan struct{}), sessions: map[cdp.SessionID]*session{}, contexts: map[string]string{}}
	b.life, b.cancel = context.WithCancel(context.Background())
	ready := make(chan struct{}) // events wait until the client is known
	client, err := c.Connect(ctx, cdp.Config{Handle: func(e cdp.Event) { <-ready; b.handle(e) }})
	if err != nil {
		close(ready)
		b.cancel()
		return nil, err
	}
	b.client = client
	close(ready)
	if err := b.attachAll(ctx); err != nil {
		b.Close()
		return nil, err
	}
	return b, nil
}

func (b *Browser) attachAll(ctx context.Context) error {
	err := b.client.Call(ctx, cdp.Browser, "Browser.setDownloadBehavior", map[string]any{"behavior": "default", "eventsEnabled": true}, nil)
	if err != nil {
		return err
	}
	if err := b.client.Call(ctx, cdp.Browser, "Target.setDiscoverTargets", map[string]any{"discover": true}, nil); err != nil {
		return err
	}
	if err := b.autoAttach(ctx, cdp.Browser); err != nil {
		return err
	}
	first, cancel := context.WithTimeout(ctx, attachTime)
	defer cancel()
	for _, t := range b.Tabs() {
		if err := t.awaitReady(first); err != nil && ctx.Err() != nil {
			return err
		}
	}
	return nil
}

// broadcast sends commands to sessions and waits for the replies of pages that are set up. Other pages apply the commands
// later.
func (b *Browser) broadcast(ctx context.Context, sessions []*session, list ...command) error {
	var sent []*cdp.Pending
	for _, s := range sessions {
		awaited := s.tab.IsReady()
		for _, c := range list {
			p, err := b.client.Begin(ctx, s.id, c.method, c.params)
			if err != nil {
				return err
			}
			if awaited {
				sent = append(sent, p)
			}
		}
	}
	for _, p := range sent {
		// An error means that the page has closed.
		if err := p.Wait(ctx, nil); err != nil && ctx.Err() != nil {
			return err
		}
	}
	return nil
}

func (b *Browser) autoAttach(ctx context.Context, s cdp.SessionID) error {
	return b.client.Call(ctx, s, "Target.setAutoAttach", autoAttach, nil)
}

var autoAttach = map[string]any{
	"autoAttach": true, "waitForDebuggerOnStart": true, "flatten": true,
	"filter": []map[string]any{{"type": "page"}, {"type": "iframe"}, {"exclude": true}},
}

// Close closes the connection. The browser keeps running.
func (b *Browser) Close() {
	b.cancel()
	b.client.Close()
	b.work.Wait()
}

// Done is closed when the connection has ended.
func (b *Browser) Done() <-chan struct{} { return b.client.Done() }

// Client is the connection.
func (b *Browser) Client() *cdp.Client { return b.client }

// notify wakes all goroutines that wait for a change. b.mu is held.
func (b *Browser) notify() {
	close(b.changed)
	b.changed = make(chan struct{})
}

// await waits until ok returns true or an error. ok is called with b.mu held, again after every change.
func (b *Browser) await(ctx context.Context, ok func() (bool, error)) error {
	for {
		b.mu.Lock()
		done, err := ok()
		changed := b.changed
		b.mu.Unlock()
		if done || err != nil {
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-b.client.Done():
			return b.client.Err()
		}
	}
}

// spawn runs f on a goroutine that Close waits for.
func (b *Browser) spawn(f func(ctx context.Context)) {
	b.work.Go(func() {
		ctx, cancel := context.WithTimeout(b.life, replyTime)
		defer cancel()
		f(ctx)
	})
}

// Tabs lists the tabs in the order in which they were opened.
func (b *Browser) Tabs() []*Tab {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.tabs)
}

// AwaitTab waits until the browser has a tab.
func (b *Browser) AwaitTab(ctx context.Context) error {
	return b.await(ctx, func() (bool, error) { return len(b.tabs) > 0, nil })
}

// Find returns the tab with an id, nil if there is none.
func (b *Browser) Find(id string) *Tab {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.find(id)
}

func (b *Browser) find(id string) *Tab {
	for _, t := range b.tabs {
		if t.ID == id {
			return t
		}
	}
	return nil
}

// Create opens a tab in front, or hidden. context is an isolated context, or empty.
func (b *Browser) Create(ctx context.Context, context string, hidden bool) (*Tab, error) {
	params := map[string]any{"url": "about:blank"}
	if context != "" {
		params["browserContextId"] = context
	}
	if hidden {
		params["background"] = true
	}
	var r struct {
		TargetID string `json:"targetId"`
	}
	if err := b.client.Call(ctx, cdp.Browser, "Target.createTarget", params, &r); err != nil {
		return nil, err
	}
	var t *Tab
	err := b.await(ctx, func() (bool, error) {
		t = b.find(r.TargetID)
		return t != nil, nil
	})
	if err != nil {
		return nil, err
	}
	return t, t.awaitReady(ctx)
}

// Activate brings a tab to the front.
func (b *Browser) Activate(ctx context.Context, t *Tab) error {
	return b.client.ActivateTarget(ctx, t.ID)
}

// CloseTab closes a tab and waits until it is closed. The page cannot prevent it.
func (b *Browser) CloseTab(ctx context.Context, t *Tab) error {
	defer t.Begin()()
	if err := b.client.CloseTarget(ctx, t.ID); err != nil {
		return err
	}
	return b.await(ctx, func() (bool, error) { return b.find(t.ID) == nil, nil })
}

// maxScripts is the maximum number of additional scripts. Later pages do not run the oldest ones above it.
const maxScripts = 20

// AddScript runs a script in the isolated world of all documents, including later ones.
func (b *Browser) AddScript(ctx context.Context, script string) error {
	b.mu.Lock()
	b.scripts = append(b.scripts, script)
	if len(b.scripts) > maxScripts {
		b.scripts = b.scripts[1:]
	}
	sessions := slices.Collect(maps.Values(b.sessions))
	b.mu.Unlock()
	return b.broadcast(ctx, sessions, command{"Page.addScriptToEvaluateOnNewDocument",
		map[string]any{"source": script, "worldName": World, "runImmediately": true}})
}

// Origins are the origins of pages shown since the connection began.
func (b *Browser) Origins() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.origins)
}

// CreateContext creates an isolated context. Its tabs do not share cookies and storage with others.
func (b *Browser) CreateContext(ctx context.Context, name string) (string, error) {
	var r struct {
		ID string `json:"browserContextId"`
	}
	if err := b.client.Call(ctx, cdp.Browser, "Target.createBrowserContext", map[string]any{"disposeOnDetach": false}, &r); err != nil {
		return "", err
	}
	err := b.client.Call(ctx, cdp.Browser, "Browser.setDownloadBehavior",
		map[string]any{"behavior": "default", "eventsEnabled": true, "browserContextId": r.ID}, nil)
	b.permitContext(ctx, r.ID)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.contexts[r.ID] = name
	return r.ID, err
}

// Contexts returns the names of the isolated contexts by their id.
func (b *Browser) Contexts() map[string]string {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := make(map[string]string, len(b.contexts))
	for id, name := range b.contexts {
		out[id] = name
	}
	return out
}

// DisposeContext closes the tabs of a context and deletes its data.
func (b *Browser) DisposeContext(ctx context.Context, id string) error {
	err := b.client.Call(ctx, cdp.Browser, "Target.disposeBrowserContext", map[string]any{"browserContextId": id}, nil)
	if err != nil {
		return err
	}
	b.mu.Lock()
	delete(b.contexts, id)
	b.mu.Unlock()
	return b.await(ctx, func() (bool, error) {
		return !slices.ContainsFunc(b.tabs, func(t *Tab) bool { return t.Context == id }), nil
	})
}

// ErrClosed is returned when a tab closed during an operation.
var ErrClosed = errors.New("the tab was closed")

// ErrCrashed is returned when the page of a tab has crashed.
var ErrCrashed = errors.New("the page has crashed")
