package agentsandbox

import (
	"context"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/hub/internal/task"
)

// parallel is the maximum number of objects of a namespace that are processed concurrently, so that a slow
// namespace does not delay others.
const parallel = 16

// queue processes objects, each by at most one worker at a time.
type queue struct {
	changed chan struct{} // receives after a change

	mu   sync.Mutex
	due  map[key]time.Time // time to process it; zero: now
	busy map[key]bool
	work map[string]int // number of busy objects, by namespace
}

// add schedules an object at a time, or earlier.
func (q *queue) add(k key, at time.Time) {
	q.mu.Lock()
	if q.due == nil {
		q.due, q.busy, q.work = map[key]time.Time{}, map[key]bool{}, map[string]int{}
	}
	if old, ok := q.due[k]; !ok || at.Before(old) {
		q.due[k] = at
	}
	q.mu.Unlock()
	q.notify()
}

func (q *queue) notify() {
	select {
	case q.changed <- struct{}{}:
	default: // already notified
	}
}

// run calls work for objects that are due, until ctx ends. work returns when to process the object again;
// zero: after the next change.
func (q *queue) run(ctx context.Context, tasks *task.Group, work func(context.Context, key) time.Time) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-q.changed:
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

// take returns the objects to process now, and when the next one is due.
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
	q.notify()
}
