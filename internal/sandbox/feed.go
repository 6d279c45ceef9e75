package sandbox

import (
	"context"
	"sync"
)

// backlog is how many events a reader may be behind before it loses its place.
const backlog = 1024

// Feed spreads a provider's events to its watchers in the order they are
// published. It keeps the promises of Provider.Watch; every provider that sees
// its own changes uses it. The zero value is ready.
type Feed struct {
	mu     sync.Mutex
	closed bool
	subs   map[chan Event]func() bool
}

// Publish sends e to every watcher and never waits: a watcher without room is
// closed, so that it knows that it missed something.
func (f *Feed) Publish(e Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for ch := range f.subs {
		copied := e
		copied.Sandbox = e.Sandbox.Clone()
		select {
		case ch <- copied:
		default:
			f.drop(ch)
		}
	}
}

// Watch adds a watcher that first sees existing. The caller changes its records
// and publishes under one lock, and holds that lock here as well: so no change
// is missed or told twice.
func (f *Feed) Watch(ctx context.Context, existing []Event) (<-chan Event, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil, ErrClosed
	}
	ch := make(chan Event, len(existing)+backlog)
	for _, e := range existing {
		ch <- e
	}
	if f.subs == nil {
		f.subs = map[chan Event]func() bool{}
	}
	f.subs[ch] = context.AfterFunc(ctx, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.drop(ch)
	})
	return ch, nil
}

// drop closes a watcher once; f.mu is held.
func (f *Feed) drop(ch chan Event) {
	if stop, ok := f.subs[ch]; ok {
		delete(f.subs, ch)
		stop()
		close(ch)
	}
}

// Close ends all watchers and refuses new ones.
func (f *Feed) Close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	for ch := range f.subs {
		f.drop(ch)
	}
}
