package archive

import (
	"context"
	"sync"
)

// Uploads at once: each has a part in memory. No owner can take all of them: who copies slowly must not keep others waiting.
const (
	maxUploads    = 8
	maxOwnUploads = 4
)

// turns lets uploads take turns.
type turns struct {
	all chan struct{}

	mu     sync.Mutex
	owners map[string]*queue
}

// queue is that of one owner.
type queue struct {
	slots chan struct{}
	users int // who have a slot, or wait for one
}

func newTurns() *turns {
	return &turns{all: make(chan struct{}, maxUploads), owners: map[string]*queue{}}
}

// take waits for a turn; done ends it.
func (t *turns) take(ctx context.Context, owner string) (done func(), err error) {
	t.mu.Lock()
	q := t.owners[owner]
	if q == nil {
		q = &queue{slots: make(chan struct{}, maxOwnUploads)}
		t.owners[owner] = q
	}
	q.users++
	t.mu.Unlock()
	leave := func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if q.users--; q.users == 0 {
			delete(t.owners, owner)
		}
	}
	for i, slots := range []chan struct{}{q.slots, t.all} {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			if i > 0 {
				<-q.slots
			}
			leave()
			return nil, context.Cause(ctx)
		}
	}
	return func() { <-t.all; <-q.slots; leave() }, nil
}
