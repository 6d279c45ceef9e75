package driver

import (
	"context"
	"errors"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/guest/internal/locate"
	"github.com/cove-sandbox/cove/internal/guest/internal/tab"
)

// Where selects the tab of an operation and limits its duration.
type Where struct {
	Tab     *int     `json:"tab" doc:"Index of the tab; default: the active tab" minimum:"0"`
	Timeout *float64 `json:"timeout" doc:"Timeout in seconds; default: 15"`
}

// Here is Where for operations without a body.
type Here struct {
	Tab     *int     `query:"tab" doc:"Index of the tab; default: the active tab" minimum:"0"`
	Timeout *float64 `query:"timeout" doc:"Timeout in seconds; default: 15"`
}

// Where returns the same selection as Where.
func (h Here) Where() Where { return Where(h) }

const (
	// ActionTime is the default timeout of an operation.
	ActionTime = 15 * time.Second
	// NavigationTime is the default timeout of a navigation.
	NavigationTime = 30 * time.Second
	// tabTime is how long the tab that replaces the last one may take to open.
	tabTime = 10 * time.Second
	// ProbeTime is how long a page may take to prove that it responds.
	ProbeTime = time.Second
)

// Seconds returns a duration within bounds: 0 or less is at once, and the maximum is one hour.
func Seconds(s float64) time.Duration {
	return op.Seconds(min(max(s, 0.001), 3600))
}

// selection is a tab that a caller made the active one. The browser's own list follows with a delay, and does not follow
// at all between windows. So the selection is valid until that list changes.
type selection struct {
	tab   string
	first string // of the browser's list at that time
}

// SetActive records that a tab is the active one.
func (d *Driver) SetActive(t *tab.Tab, recent []string) {
	first := ""
	if len(recent) > 0 {
		first = recent[0]
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.selected = selection{t.ID, first}
}

// Active returns the tab that the display shows, nil if there is none.
func (d *Driver) Active(b *tab.Browser, recent []string) *tab.Tab {
	d.mu.Lock()
	s := d.selected
	if len(recent) == 0 || recent[0] != s.first {
		d.selected = selection{}
	}
	d.mu.Unlock()
	if len(recent) > 0 && recent[0] == s.first {
		if t := b.Find(s.tab); t != nil {
			return t
		}
	}
	for _, id := range recent {
		if t := b.Find(id); t != nil {
			return t
		}
	}
	if tabs := b.Tabs(); len(tabs) > 0 {
		return tabs[0]
	}
	return nil
}

// Tab returns the tab with an index, or the active one if index is nil. If another client has closed
// the last tab, Tab waits for the blank one that replaces it.
func (d *Driver) Tab(ctx context.Context, b *tab.Browser, recent []string, index *int) (*tab.Tab, error) {
	tabs := b.Tabs()
	if index != nil {
		if *index >= len(tabs) || *index < 0 {
			return nil, op.Errorf(op.NotFound, "no tab %d; there are %d tabs, counted from 0", *index, len(tabs))
		}
		return tabs[*index], nil
	}
	bounded, cancel := context.WithTimeout(ctx, tabTime)
	defer cancel()
	if err := b.AwaitTab(bounded); err == nil {
		if t := d.Active(b, recent); t != nil {
			return t, nil
		}
	}
	return nil, op.Errorf(op.Unavailable, "the browser has no tab; create one")
}

// WithBrowser runs fn on the browser as a whole.
func (d *Driver) WithBrowser(ctx context.Context, fn func(ctx context.Context, b *tab.Browser, recent []string) error) error {
	b, recent, release, err := d.Connect(ctx)
	if err != nil {
		return err
	}
	defer release()
	bounded, cancel := context.WithTimeout(ctx, NavigationTime)
	defer cancel()
	err = fn(bounded, b, recent)
	d.cfg.Browser.HintRestart(ctx)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil && bounded.Err() != nil {
		return op.Errorf(op.Unavailable, "timed out after %v; retry", NavigationTime)
	}
	return ToOpError(err)
}

// Options of a visit. The zero value is an action on a page.
type Options struct {
	Limit       time.Duration // if the caller sets no timeout; 0: ActionTime
	AllowFailed bool          // the page may have crashed or not respond
	Wait        bool          // the operation waits for effects of an earlier one
	Repeat      bool          // if the active tab closes meanwhile, the operation may be repeated in the next one
}

// Visit runs fn on a tab. It limits the duration, answers dialogs, explains errors, and reports what else happened.
func (d *Driver) Visit(ctx context.Context, w Where, fn func(ctx context.Context, t *tab.Tab) error) error {
	return d.VisitWith(ctx, w, Options{}, fn)
}

// VisitWith is Visit with options.
func (d *Driver) VisitWith(ctx context.Context, w Where, o Options, fn func(ctx context.Context, t *tab.Tab) error) error {
	closed, err := d.visit(ctx, w, o, fn)
	if closed && o.Repeat && w.Tab == nil && ctx.Err() == nil {
		_, err = d.visit(ctx, w, o, fn)
	}
	return err
}

// visit reports whether the operation failed because the tab was closed.
func (d *Driver) visit(ctx context.Context, w Where, o Options, fn func(ctx context.Context, t *tab.Tab) error) (closed bool, err error) {
	limit := o.Limit
	if limit == 0 {
		limit = ActionTime
	}
	if w.Timeout != nil {
		limit = Seconds(*w.Timeout)
	}
	b, recent, release, err := d.Connect(ctx)
	if err != nil {
		return false, err
	}
	defer release()
	t, err := d.Tab(ctx, b, recent, w.Tab)
	if err != nil {
		return false, err
	}
	defer func() { closed = err != nil && errors.Is(t.Check(), tab.ErrClosed) }()
	defer t.Begin()()
	if !o.Wait {
		t.Mark()
	}
	bounded, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	before := watch(b, t)
	if err := awaitReady(bounded, t, o.AllowFailed); err != nil {
		return false, explain(ctx, bounded, t, limit, err)
	}
	if err := t.Check(); err != nil && !(o.AllowFailed && errors.Is(err, tab.ErrCrashed)) {
		return false, explain(ctx, bounded, t, limit, err)
	}
	alive, end := context.WithCancel(bounded)
	defer end()
	defer t.OnEnd(end)()
	err = fn(alive, t)
	if ended := t.Check(); err != nil && ended != nil && alive.Err() != nil && bounded.Err() == nil {
		err = ended
	}
	if err != nil {
		err = explain(ctx, bounded, t, limit, err)
	}
	before.hint(ctx)
	d.cfg.Browser.HintRestart(ctx)
	return false, err
}

// awaitReady waits until a tab can be used. A failed page may never be ready, so it gets half of the time.
func awaitReady(ctx context.Context, t *tab.Tab, allowFailed bool) error {
	if end, ok := ctx.Deadline(); ok && allowFailed {
		half, cancel := context.WithTimeout(ctx, time.Until(end)/2)
		defer cancel()
		_ = t.Ready(half)
		return nil
	}
	return t.Ready(ctx)
}

// Responds reports whether a page still runs scripts.
func Responds(ctx context.Context, t *tab.Tab) bool {
	if t.Check() != nil {
		return false
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), ProbeTime)
	defer cancel()
	return t.Call(ctx, "Runtime.evaluate", map[string]any{"expression": "1"}, nil) == nil
}

// Interrupt stops the script of a page that does not respond, and reports whether it was necessary.
func Interrupt(ctx context.Context, t *tab.Tab) bool {
	if t.Check() != nil {
		return false
	}
	probe, cancel := context.WithTimeout(ctx, ProbeTime)
	defer cancel()
	if t.Call(probe, "Runtime.evaluate", map[string]any{"expression": "1"}, nil) == nil || probe.Err() == nil {
		return false
	}
	stop, cancel := context.WithTimeout(ctx, 2*ProbeTime)
	defer cancel()
	_ = t.Call(stop, "Runtime.terminateExecution", nil, nil)
	return true
}

// Title returns the title of a page. The browser reports titles with a delay, so the page itself is queried. If it does not
// respond, the last reported title is returned.
func Title(ctx context.Context, t *tab.Tab) string {
	title := t.Title()
	if ctx.Err() == nil && t.IsReady() {
		ctx, cancel := context.WithTimeout(ctx, ProbeTime)
		defer cancel()
		_ = locate.Evaluate(ctx, t, "document.title", &title)
	}
	return title
}

// Poll calls done repeatedly until it returns true or an error, or ctx ends.
func Poll(ctx context.Context, every time.Duration, done func() (bool, error)) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		if ok, err := done(); ok || err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
