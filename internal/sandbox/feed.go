package sandbox

import (
	"context"
	"sync"
)

// backlog is the number of events that a watcher can be behind before it is closed.
const backlog = 1024

// Feed distributes a provider's events to its watchers in the order of publication. It implements the
// guarantees of Provider.Watch. The zero value is ready to use.
type Feed struct {
	mu     sync.Mutex
	closed bool
	subs   map[chan Event]func() bool
}

// Publish sends e to all watchers without blocking. It closes a watcher that is too far behind, which then
// knows that it missed events.
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

// Watch adds a watcher that first receives existing. Callers change their records and publish under one
// lock, and must hold that lock here, so that no change is missed or sent twice.
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

// Close ends all watchers and rejects new ones.
func (f *Feed) Close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	for ch := range f.subs {
		f.drop(ch)
	}
}
