package driver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/guest/internal/locate"
	"github.com/cove-sandbox/cove/internal/guest/internal/tab"
)

// explain turns an error into one that says what the caller can do. The script of a page that does not respond is
// interrupted.
func explain(ctx, bounded context.Context, t *tab.Tab, limit time.Duration, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	late := bounded.Err() != nil
	if late && Interrupt(ctx, t) {
		return op.Errorf(op.Unavailable, "timed out after %v: the page did not respond and its script was interrupted; "+
			"retry, reload the page or close the tab", limit)
	}
	if missing, ok := errors.AsType[*locate.NotFoundError](err); ok {
		return op.Errorf(op.NotFound, "no element matches %s within %v; %s", missing.Target, limit, describeElements(ctx, t))
	}
	if _, ok := op.AsError(err); ok {
		return err
	}
	if unknown, ok := errors.AsType[*locate.UnknownKeyError](err); ok {
		return op.Errorf(op.Invalid, "%w", unknown)
	}
	if late {
		return op.Errorf(op.Unavailable, "timed out after %v; the page may be slow: increase timeout or wait for an event first", limit)
	}
	return ToOpError(err)
}

// describeElements lists a few elements of the page, for a message about a missing one.
func describeElements(ctx context.Context, t *tab.Tab) string {
	ctx, cancel := context.WithTimeout(ctx, ProbeTime)
	defer cancel()
	var list []struct{ Role, Tag, Name, Text string }
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
			name += fmt.Sprintf(" %q", Shorten(label, 40))
		} else if e.Text != "" {
			name += fmt.Sprintf(" %q", Shorten(e.Text, 40))
		}
		names = append(names, name)
	}
	return fmt.Sprintf("the page %q has %d interactive elements, such as %s", t.URL(), len(list), strings.Join(names, ", "))
}

// Shorten cuts a text to n characters.
func Shorten(s string, n int) string {
	r := []rune(s)
	if len(r) <= n {
		return s
	}
	return string(r[:n-1]) + "…"
}

// watcher observes side effects of an operation.
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

// hint adds the side effects to the reply.
func (w watcher) hint(ctx context.Context) {
	var hints []string
	if list := w.t.Dialogs(); len(list) > w.dialogs {
		for _, d := range list[w.dialogs:] {
			state := "was dismissed"
			if d.Accepted {
				state = "was accepted"
			}
			if d.Open {
				state = "is open and will be answered by the next operation"
			}
			hints = append(hints, fmt.Sprintf("The page opened a dialog (%s: %q), which %s.", d.Type, Shorten(d.Message, 200), state))
		}
	}
	for i, t := range w.b.Tabs() {
		if !slices.Contains(w.tabs, t) && t.Opener == w.t.ID {
			hints = append(hints, fmt.Sprintf("The page opened a new tab %d, which is now active: %s", i, t.URL()))
		}
	}
	if list := w.b.Downloads(); len(list) > w.downloads {
		for _, d := range list[w.downloads:] {
			hints = append(hints, fmt.Sprintf("Download of %q started.", d.Name))
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
