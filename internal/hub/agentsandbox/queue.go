package agentsandbox

import (
	"context"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/hub/internal/task"
)

// parallel is how many objects of a namespace are worked on at the same time: one with slow ones does
// not hold up others.
const parallel = 16

// queue works on objects: one worker for each at a time.
type queue struct {
	kick chan struct{}

	mu   sync.Mutex
	due  map[key]time.Time // when to work on it; zero: now
	busy map[key]bool
	work map[string]int // how many are busy, by namespace
}

// add asks for work on an object at a time, or earlier.
func (q *queue) add(k key, at time.Time) {
	q.mu.Lock()
	if q.due == nil {
		q.due, q.busy, q.work = map[key]time.Time{}, map[key]bool{}, map[string]int{}
	}
	if old, ok := q.due[k]; !ok || at.Before(old) {
		q.due[k] = at
	}
	q.mu.Unlock()
	q.wake()
}

func (q *queue) wake() {
	select {
	case q.kick <- struct{}{}:
	default: // it will look anyway
	}
}

// run calls work for objects that are due, until ctx ends. Work returns when to look at the object again;
// zero: when something changes.
func (q *queue) run(ctx context.Context, tasks *task.Group, work func(context.Context, key) time.Time) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-q.kick:
		}
		ready, next := q.take(time.Now())
		for _, k := range ready {
			tasks.Go(func(ctx context.Context) {
				again := work(ctx, k)
				q.finish(k)
				if !again.IsZero() {
					q.add(k, again)
				}
			})
		}
		if !next.IsZero() {
			timer.Reset(max(time.Until(next), time.Millisecond))
		}
	}
}

// take returns what can be worked on now, and when the next is due.
func (q *queue) take(now time.Time) (ready []key, next time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for k, at := range q.due {
		switch {
		case q.busy[k]:
		case at.After(now):
			if next.IsZero() || at.Before(next) {
				next = at
			}
		case q.work[k.namespace] < parallel:
			q.busy[k] = true
			q.work[k.namespace]++
			delete(q.due, k)
			ready = append(ready, k)
		}
	}
	return ready, next
}

func (q *queue) finish(k key) {
	q.mu.Lock()
	delete(q.busy, k)
	q.work[k.namespace]--
	q.mu.Unlock()
	q.wake()
}
