package archive

import (
	"context"
	"sync"
)

// Limits of concurrent uploads, which have a part in memory each. A limit per owner prevents slow uploads of one
// owner from blocking others.
const (
	maxUploads      = 8
	maxOwnerUploads = 4
)

// limiter limits concurrent uploads.
type limiter struct {
	all chan struct{}

	mu     sync.Mutex
	owners map[string]*queue
}

// queue is the queue of one owner.
type queue struct {
	slots chan struct{}
	users int // running and waiting uploads
}

func newLimiter() *limiter {
	return &limiter{all: make(chan struct{}, maxUploads), owners: map[string]*queue{}}
}

// acquire waits for a slot; done releases it.
func (l *limiter) acquire(ctx context.Context, owner string) (done func(), err error) {
	l.mu.Lock()
	q := l.owners[owner]
	if q == nil {
		q = &queue{slots: make(chan struct{}, maxOwnerUploads)}
		l.owners[owner] = q
	}
	q.users++
	l.mu.Unlock()
	leave := func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if q.users--; q.users == 0 {
			delete(l.owners, owner)
		}
	}
	for i, slots := range []chan struct{}{q.slots, l.all} {
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
	return func() { <-l.all; <-q.slots; leave() }, nil
}
