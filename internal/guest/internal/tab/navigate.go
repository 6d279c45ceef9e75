package tab

import (
	"context"
	"fmt"
	"time"
)

// Load states that can be waited for.
const (
	Commit           = "commit"
	DOMContentLoaded = "DOMContentLoaded"
	Load             = "load"
	NetworkIdle      = "networkIdle"
)

// LoadState returns the load state with a name that callers use. The default is load.
func LoadState(name string) (state string, ok bool) {
	switch name {
	case "", "load":
		return Load, true
	case "domcontentloaded":
		return DOMContentLoaded, true
	case "networkidle", "network_idle":
		return NetworkIdle, true
	case "commit":
		return Commit, true
	}
	return "", false
}

// NavigationError is a navigation that failed.
type NavigationError struct {
	URL      string
	Text     string // such as net::ERR_CONNECTION_REFUSED
	Download bool   // the URL is a download
}

func (e *NavigationError) Error() string { return fmt.Sprintf("navigate to %q: %s", e.URL, e.Text) }

// Navigate opens a URL in the tab and waits for a load state.
func (t *Tab) Navigate(ctx context.Context, address, state string) error {
	var r struct {
		LoaderID string `json:"loaderId"`
		Error    string `json:"errorText"`
		Download bool   `json:"isDownload"`
	}
	if err := t.Call(ctx, "Page.navigate", map[string]any{"url": address}, &r); err != nil {
		return err
	}
	if r.Error != "" {
		return &NavigationError{URL: address, Text: r.Error, Download: r.Download}
	}
	if r.LoaderID == "" {
		return nil // within the document
	}
	seen := false
	err := t.b.await(ctx, func() (bool, error) {
		if t.closed {
			return false, ErrClosed
		}
		if t.main != nil { // nil if the page did not respond since the connection was opened
			replaced := t.main.started != r.LoaderID && t.main.loader != "" && t.isReplaced(r.LoaderID)
			seen = seen || t.main.loader == r.LoaderID || replaced
		}
		return seen, nil
	})
	if err != nil {
		return err
	}
	return t.AwaitLoad(ctx, state)
}

// isReplaced reports whether another navigation has replaced the one with a loader. b.mu is held.
func (t *Tab) isReplaced(loader string) bool {
	return t.main.started != "" && t.main.started != loader
}

// AwaitLoad waits until the document of the main frame reaches a load state. It waits for a navigation in progress.
func (t *Tab) AwaitLoad(ctx context.Context, state string) error {
	return t.b.await(ctx, func() (bool, error) {
		if err := t.check(); err != nil {
			return false, err
		}
		return t.main != nil && (t.main.states[state] || state == Commit && t.main.loader != ""), nil
	})
}

// Loading reports whether the page has not reached a load state.
func (t *Tab) Loading(state string) bool {
	t.b.mu.Lock()
	defer t.b.mu.Unlock()
	return t.main == nil || !t.main.states[state]
}

// Commits counts the navigations of the tab.
func (t *Tab) Commits() int {
	t.b.mu.Lock()
	defer t.b.mu.Unlock()
	return t.commits
}

// AwaitCommit waits for a navigation after the given count.
func (t *Tab) AwaitCommit(ctx context.Context, after int) error {
	return t.b.await(ctx, func() (bool, error) {
		if t.closed {
			return false, ErrClosed
		}
		return t.commits > after, nil
	})
}

// AwaitSettled waits for the navigations that an action started, in any frame, until their documents can be used.
func (t *Tab) AwaitSettled(ctx context.Context) error {
	// A requested navigation that never starts expires without an event.
	timer := time.AfterFunc(requestTime+10*time.Millisecond, func() {
		t.b.mu.Lock()
		defer t.b.mu.Unlock()
		t.b.notify()
	})
	defer timer.Stop()
	return t.b.await(ctx, func() (bool, error) {
		if t.closed || t.crashed {
			return true, nil
		}
		for _, f := range t.frames {
			if f.isNavigating() {
				return false, nil
			}
		}
		return t.main == nil || t.main.states[DOMContentLoaded] || t.main.states[Load] || t.main.loader == "", nil
	})
}

// Navigating reports whether a navigation is in progress.
func (t *Tab) Navigating() bool {
	t.b.mu.Lock()
	defer t.b.mu.Unlock()
	for _, f := range t.frames {
		if f.isNavigating() {
			return true
		}
	}
	return false
}

// AwaitURL waits until the URL matches.
func (t *Tab) AwaitURL(ctx context.Context, match func(string) bool) error {
	return t.b.await(ctx, func() (bool, error) {
		if t.closed {
			return false, ErrClosed
		}
		return match(t.url), nil
	})
}

// Travel moves in the history by a number of entries. It returns false if there is no such entry.
func (t *Tab) Travel(ctx context.Context, by int) (bool, error) {
	var r struct {
		Current int `json:"currentIndex"`
		Entries []struct {
			ID int `json:"id"`
		} `json:"entries"`
	}
	if err := t.Call(ctx, "Page.getNavigationHistory", nil, &r); err != nil {
		return false, err
	}
	at := r.Current + by
	if at < 0 || at >= len(r.Entries) {
		return false, nil
	}
	before := t.Commits()
	if err := t.Call(ctx, "Page.navigateToHistoryEntry", map[string]any{"entryId": r.Entries[at].ID}, nil); err != nil {
		return false, err
	}
	if err := t.AwaitCommit(ctx, before); err != nil {
		return true, err
	}
	return true, t.AwaitLoad(ctx, Load)
}

// Reload loads the page again.
func (t *Tab) Reload(ctx context.Context) error {
	before := t.Commits()
	if err := t.Call(ctx, "Page.reload", nil, nil); err != nil {
		return err
	}
	if err := t.AwaitCommit(ctx, before); err != nil {
		return err
	}
	return t.AwaitLoad(ctx, Load)
}

// Stop cancels a navigation that has not committed.
func (t *Tab) Stop(ctx context.Context) { _ = t.Call(ctx, "Page.stopLoading", nil, nil) }
