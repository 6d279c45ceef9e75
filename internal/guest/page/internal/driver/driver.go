// Package driver runs operations on tabs of the browser.
//
// It owns the connection to the browser, selects the tab of an operation, limits its duration and explains its errors.
package driver

import (
	"context"
	"errors"
	"log/slog"
	"sync"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/guest/internal/cdp"
	"github.com/cove-sandbox/cove/internal/guest/internal/locate"
	"github.com/cove-sandbox/cove/internal/guest/internal/pathname"
	"github.com/cove-sandbox/cove/internal/guest/internal/tab"
)

// Browser is the browser whose tabs are driven.
type Browser interface {
	// Reach keeps the browser running until release. pipe connects to it. recent contains the ids of its tabs, most
	// recently used first.
	Reach(ctx context.Context) (pipe *cdp.Pipe, recent []string, release func(), err error)
	// HintRestart adds a hint to the reply if the browser was restarted since the previous reply.
	HintRestart(ctx context.Context)
	// Downloads is the folder of downloaded files.
	Downloads() string
}

// Config of a driver.
type Config struct {
	Browser Browser
	Base    pathname.Base // for paths that callers send
	Log     *slog.Logger
}

// Driver connects to the browser and runs operations on its tabs.
type Driver struct {
	cfg     Config
	opening chan struct{} // held while a connection is opened

	setups   []func(context.Context, *tab.Browser) error // set before the first use
	memories []interface{ clear() }                      // set before the first use

	mu       sync.Mutex
	pipe     *cdp.Pipe    // of the connected browser
	tabs     *tab.Browser // nil before the first use
	selected selection
	closed   bool
}

// New returns a driver. It has no side effects.
func New(c Config) *Driver {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return &Driver{cfg: c, opening: make(chan struct{}, 1)}
}

// Close closes the connection. The browser keeps running.
func (d *Driver) Close() error {
	d.mu.Lock()
	b := d.tabs
	d.tabs, d.closed = nil, true
	d.mu.Unlock()
	if b != nil {
		b.Close()
	}
	return nil
}

// Downloads is the folder of downloaded files.
func (d *Driver) Downloads() string { return d.cfg.Browser.Downloads() }

// OnConnect registers a function that applies the settings of callers to each new connection, because the browser may be
// restarted at any time. It must be called before the first operation.
func (d *Driver) OnConnect(apply func(context.Context, *tab.Browser) error) {
	d.setups = append(d.setups, apply)
}

// Connect returns the connection to the browser, a new one if the browser was restarted. recent contains the ids of its
// tabs, most recently used first. The browser keeps running until release.
func (d *Driver) Connect(ctx context.Context) (b *tab.Browser, recent []string, release func(), err error) {
	pipe, recent, release, err := d.cfg.Browser.Reach(ctx)
	if err != nil {
		return nil, nil, nil, err
	}
	if b = d.current(pipe); b != nil {
		return b, recent, release, nil
	}
	select {
	case d.opening <- struct{}{}:
		defer func() { <-d.opening }()
	case <-ctx.Done():
		release()
		return nil, nil, nil, context.Cause(ctx)
	}
	if b = d.current(pipe); b != nil {
		return b, recent, release, nil
	}
	if b, err = d.open(ctx, pipe); err != nil {
		release()
		return nil, nil, nil, ToOpError(err)
	}
	return b, recent, release, nil
}

// current returns the connection if it is alive and belongs to this browser.
func (d *Driver) current(pipe *cdp.Pipe) *tab.Browser {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.tabs == nil || d.pipe != pipe || d.tabs.Client().Err() != nil {
		return nil
	}
	return d.tabs
}

func (d *Driver) open(ctx context.Context, pipe *cdp.Pipe) (*tab.Browser, error) {
	b, err := tab.Open(ctx, tab.Config{Connect: pipe.Connect, Script: locate.Boot(), Log: d.cfg.Log})
	if err != nil {
		return nil, err
	}
	for _, apply := range d.setups {
		if err := apply(ctx, b); err != nil {
			b.Close()
			return nil, err
		}
	}
	d.mu.Lock()
	old, closed := d.tabs, d.closed
	if !closed {
		d.tabs, d.pipe = b, pipe
		for _, m := range d.memories {
			m.clear()
		}
	}
	d.mu.Unlock()
	if old != nil {
		old.Close()
	}
	if closed {
		b.Close()
		return nil, op.Errorf(op.Unavailable, "the sandbox is stopping")
	}
	return b, nil
}

// ToOpError turns an error of the browser into one for the caller.
func ToOpError(err error) error {
	if _, ok := op.AsError(err); ok || err == nil {
		return err
	}
	switch {
	case errors.Is(err, tab.ErrCrashed):
		return op.Errorf(op.Unavailable, "the page crashed, possibly because it ran out of memory; reload it or navigate to another URL")
	case errors.Is(err, tab.ErrClosed):
		return op.Errorf(op.NotFound, "the tab was closed during the operation; list the tabs")
	case errors.Is(err, cdp.ErrClosed):
		return op.Errorf(op.Unavailable, "the browser crashed during this call; retry, the next call starts a new browser")
	case tab.IsStale(err):
		return op.Errorf(op.Conflict, "the page navigated during the operation; retry")
	}
	return op.Errorf(op.Unavailable, "%w", err)
}

// Memory is what callers were last sent about each tab. It is forgotten when the browser is restarted.
type Memory[T any] struct {
	mu    sync.Mutex
	byTab map[string]T
}

// NewMemory returns an empty memory of the driver's tabs. It must be called before the first operation.
func NewMemory[T any](d *Driver) *Memory[T] {
	m := &Memory[T]{byTab: map[string]T{}}
	d.memories = append(d.memories, m)
	return m
}

// Get returns what was stored for a tab.
func (m *Memory[T]) Get(t *tab.Tab) (T, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	v, ok := m.byTab[t.ID]
	return v, ok
}

// Set replaces what was stored for a tab, and returns the previous value.
func (m *Memory[T]) Set(t *tab.Tab, v T) (previous T, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	previous, ok = m.byTab[t.ID]
	m.byTab[t.ID] = v
	return previous, ok
}

func (m *Memory[T]) clear() {
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.byTab)
}
