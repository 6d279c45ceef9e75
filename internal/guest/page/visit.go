package page

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/guest/internal/cdp"
	"github.com/cove-sandbox/cove/internal/guest/internal/keyboard"
	"github.com/cove-sandbox/cove/internal/guest/internal/locate"
	"github.com/cove-sandbox/cove/internal/guest/internal/tab"
)

// Where names the tab of an operation and bounds its time.
type Where struct {
	Tab     *int     `json:"tab" doc:"Index of the tab; default: the active one" minimum:"0"`
	Timeout *float64 `json:"timeout" doc:"Seconds to wait; default: 15"`
}

// Here is Where for operations without a body.
type Here struct {
	Tab     *int     `query:"tab" doc:"Index of the tab; default: the active one" minimum:"0"`
	Timeout *float64 `query:"timeout" doc:"Seconds to wait; default: 15"`
}

func (h Here) where() Where { return Where(h) }

// actionTime is how long an operation waits unless told otherwise.
const actionTime = 15 * time.Second

// probeTime is how long a page may take to prove that it responds.
const probeTime = time.Second

// seconds returns a duration within bounds: 0 or less means at once, and nothing takes longer than an hour.
func seconds(s float64) time.Duration {
	return op.Seconds(min(max(s, 0.001), 3600))
}

// connect returns the connection to the browser, a new one if the browser was restarted.
func (s *Service) connect(ctx context.Context) (b *tab.Browser, recent []string, release func(), err error) {
	pipe, recent, release, err := s.cfg.Browser.Reach(ctx)
	if err != nil {
		return nil, nil, nil, err
	}
	if b = s.current(pipe); b != nil {
		return b, recent, release, nil
	}
	select {
	case s.opening <- struct{}{}:
		defer func() { <-s.opening }()
	case <-ctx.Done():
		release()
		return nil, nil, nil, context.Cause(ctx)
	}
	if b = s.current(pipe); b != nil {
		return b, recent, release, nil
	}
	if b, err = s.open(ctx, pipe); err != nil {
		release()
		return nil, nil, nil, toOpError(err)
	}
	return b, recent, release, nil
}

// current returns the connection if it is to this browser and alive.
func (s *Service) current(pipe *cdp.Pipe) *tab.Browser {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.tabs == nil || s.pipe != pipe || s.tabs.Client().Err() != nil {
		return nil
	}
	return s.tabs
}

func (s *Service) open(ctx context.Context, pipe *cdp.Pipe) (*tab.Browser, error) {
	b, err := tab.Open(ctx, tab.Config{Connect: pipe.Connect, Script: locate.Boot(), Log: s.cfg.Log})
	if err != nil {
		return nil, err
	}
	if err := s.kept.apply(ctx, b); err != nil {
		b.Close()
		return nil, err
	}
	s.mu.Lock()
	old, closed := s.tabs, s.closed
	if !closed {
		s.tabs, s.pipe = b, pipe
		clear(s.listed)
		clear(s.pictures)
	}
	s.mu.Unlock()
	if old != nil {
		old.Close()
	}
	if closed {
		b.Close()
		return nil, op.Errorf(op.Unavailable, "the sandbox is stopping")
	}
	return b, nil
}

// choose returns the tab that an index names, or the active one.
func (s *Service) choose(b *tab.Browser, recent []string, index *int) (*tab.Tab, error) {
	tabs := b.Tabs()
	if index != nil {
		if *index >= len(tabs) || *index < 0 {
			return nil, op.Errorf(op.NotFound, "no tab %d; there are %d tabs, counted from 0", *index, len(tabs))
		}
		return tabs[*index], nil
	}
	if t := s.active(b, recent); t != nil {
		return t, nil
	}
	return nil, op.Errorf(op.Unavailable, "the browser has no tab; create one")
}

// chosen is a tab that a caller made the active one. The browser's own list follows a moment later, and not at all between
// windows, so it counts until that list changes.
type chosen struct {
	tab   string
	first string // of the browser's list at that time
}

// makeActive notes that a tab is the active one now.
func (s *Service) makeActive(t *tab.Tab, recent []string) {
	first := ""
	if len(recent) > 0 {
		first = recent[0]
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.chosen = chosen{t.ID, first}
}

// active is the tab that the display shows.
func (s *Service) active(b *tab.Browser, recent []string) *tab.Tab {
	s.mu.Lock()
	c := s.chosen
	if len(recent) == 0 || recent[0] != c.first {
		s.chosen = chosen{}
	}
	s.mu.Unlock()
	if len(recent) > 0 && recent[0] == c.first {
		if t := b.Find(c.tab); t != nil {
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

// visit runs fn on a tab. It bounds the time, answers dialogs, and explains failures and what else happened.
func (s *Service) visit(ctx context.Context, w Where, fn func(ctx context.Context, t *tab.Tab) error) error {
	return s.visitFor(ctx, w, actionTime, false, fn)
}

// visitFor is visit with a default time; revive allows a page that has crashed.
func (s *Service) visitFor(ctx context.Context, w Where, limit time.Duration, revive bool,
	fn func(ctx context.Context, t *tab.Tab) error) error {
	if w.Timeout != nil {
		limit = seconds(*w.Timeout)
	}
	b, recent, release, err := s.connect(ctx)
	if err != nil {
		return err
	}
	defer release()
	t, err := s.choose(b, recent, w.Tab)
	if err != nil {
		return err
	}
	defer t.Begin()()
	if !isWait(ctx) {
		t.Mark()
	}
	bounded, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	before := watch(b, t)
	if err := ready(bounded, t, revive); err != nil {
		return s.explain(ctx, bounded, t, limit, err)
	}
	if err := t.Check(); err != nil && !(revive && errors.Is(err, tab.ErrCrashed)) {
		return s.explain(ctx, bounded, t, limit, err)
	}
	alive, end := context.WithCancel(bounded)
	defer end()
	defer t.OnEnd(end)()
	err = fn(alive, t)
	if gone := t.Check(); err != nil && gone != nil && alive.Err() != nil && bounded.Err() == nil {
		err = gone
	}
	if err != nil {
		err = s.explain(ctx, bounded, t, limit, err)
	}
	before.hint(ctx)
	s.cfg.Browser.HintRestart(ctx)
	return err
}

// ready waits until a tab can be used. One that is to be revived may never be: it gets half of the time.
func ready(ctx context.Context, t *tab.Tab, revive bool) error {
	if end, ok := ctx.Deadline(); ok && revive {
		half, cancel := context.WithTimeout(ctx, time.Until(end)/2)
		defer cancel()
		_ = t.Ready(half)
		return nil
	}
	return t.Ready(ctx)
}

type waitKey struct{}

// asWait marks a context of an operation that waits for what an earlier one has caused.
func asWait(ctx context.Context) context.Context { return context.WithValue(ctx, waitKey{}, true) }
func isWait(ctx context.Context) bool            { return ctx.Value(waitKey{}) != nil }

// explain turns an error into one that tells the caller what to do. A page that does not respond is freed.
func (s *Service) explain(ctx, bounded context.Context, t *tab.Tab, limit time.Duration, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	late := bounded.Err() != nil
	if late && s.free(ctx, t) {
		return op.Errorf(op.Unavailable,
			"timed out after %v: the page does not respond, so its script was interrupted; try again, reload the page or close the tab", limit)
	}
	if missing, ok := errors.AsType[*locate.NotFoundError](err); ok {
		return op.Errorf(op.NotFound, "no element matches %s within %v; %s", missing.Target, limit, s.whatIsThere(ctx, t))
	}
	if _, ok := op.AsError(err); ok {
		return err
	}
	if unknown, ok := errors.AsType[*keyboard.UnknownError](err); ok {
		return op.Errorf(op.Invalid, "%w", unknown)
	}
	if late {
		return op.Errorf(op.Unavailable, "timed out after %v; the page may be slow: raise timeout or wait for what you need", limit)
	}
	return toOpError(err)
}

// toOpError turns an error of the browser into one for the caller.
func toOpError(err error) error {
	if _, ok := op.AsError(err); ok || err == nil {
		return err
	}
	switch {
	case errors.Is(err, tab.ErrCrashed):
		return op.Errorf(op.Unavailable, "the page has crashed, perhaps because it needed too much memory; reload it or navigate elsewhere")
	case errors.Is(err, tab.ErrGone):
		return op.Errorf(op.NotFound, "the tab was closed during the operation; list the tabs")
	case errors.Is(err, cdp.ErrClosed):
		return op.Errorf(op.Unavailable, "the browser crashed during this call; try again, the next call starts a new one")
	case tab.Gone(err):
		return op.Errorf(op.Conflict, "the page navigated during the operation; try again")
	}
	return op.Errorf(op.Unavailable, "%w", err)
}

// free interrupts the script of a page that does not respond, and reports whether it was necessary.
func (s *Service) free(ctx context.Context, t *tab.Tab) bool {
	if t.Check() != nil {
		return false
	}
	probe, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	if t.Call(probe, "Runtime.evaluate", map[string]any{"expression": "1"}, nil) == nil || probe.Err() == nil {
		return false
	}
	stop, cancel := context.WithTimeout(ctx, 2*probeTime)
	defer cancel()
	_ = t.Call(stop, "Runtime.terminateExecution", nil, nil)
	return true
}

// whatIsThere lists a few elements of the page for a message about one that is missing.
func (s *Service) whatIsThere(ctx context.Context, t *tab.Tab) string {
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	var list []element
	if f := t.Main(); f == nil || locate.Run(ctx, f, &list, "listElements") != nil {
		return "the page did not respond in time"
	}
	if len(list) == 0 {
		return fmt.Sprintf("the page %q has no interactive elements", t.URL())
	}
	var names []string
	for _, e := range list[:min(len(list), 8)] {
		name := e.Role
		if name == "" {
			name = e.Tag
		}
		if label := e.Name; label != "" {
			name += fmt.Sprintf(" %q", shorten(label, 40))
		} else if e.Text != "" {
			name += fmt.Sprintf(" %q", shorten(e.Text, 40))
		}
		names = append(names, name)
	}
	return fmt.Sprintf("the page %q has %d interactive elements, such as %s", t.URL(), len(list), strings.Join(names, ", "))
}

func shorten(s string, n int) string {
	r := []rune(s)
	if len(r) <= n {
		return s
	}
	return string(r[:n-1]) + "…"
}

// watcher notices what happens beside an operation.
type watcher struct {
	b         *tab.Browser
	t         *tab.Tab
	dialogs   int
	tabs      []*tab.Tab
	downloads int
}

func watch(b *tab.Browser, t *tab.Tab) watcher {
	return watcher{b, t, len(t.Dialogs()), b.Tabs(), len(b.Downloads())}
}

// hint adds to the reply what happened.
func (w watcher) hint(ctx context.Context) {
	var hints []string
	if list := w.t.Dialogs(); len(list) > w.dialogs {
		for _, d := range list[w.dialogs:] {
			how := "dismissed"
			if d.Accepted {
				how = "accepted"
			}
			if d.Open {
				how = "is open and will be answered by the next operation"
			}
			hints = append(hints, fmt.Sprintf("The page opened a dialog (%s: %q), which was %s.", d.Type, shorten(d.Message, 200), how))
		}
	}
	for i, t := range w.b.Tabs() {
		if !slices.Contains(w.tabs, t) && t.Opener == w.t.ID {
			hints = append(hints, fmt.Sprintf("The page opened a new tab %d, which is now active: %s", i, t.URL()))
		}
	}
	if list := w.b.Downloads(); len(list) > w.downloads {
		for _, d := range list[w.downloads:] {
			hints = append(hints, fmt.Sprintf("A download of %q has begun.", d.Name))
		}
	}
	if len(hints) == 0 {
		return
	}
	if have := op.CallOf(ctx).Hint; have != "" {
		hints = append([]string{have}, hints...)
	}
	op.Hint(ctx, "%s", strings.Join(hints, " "))
}
