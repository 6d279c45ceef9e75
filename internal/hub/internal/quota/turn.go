package quota

import (
	"container/list"
	"context"
	"slices"
	"sync"
)

// line is the queue of creates. Each tenant has its own row, and rows take turns: a create waits for all
// earlier creates of its own tenant, but for at most one of each other tenant per turn.
type line struct {
	slots   int
	running int
	rows    map[string]*row
	turns   []string // tenants with waiting creates, the next one first
}

type row struct {
	running int
	waiting list.List // of *waiter, first come first
}

type waiter struct {
	ready   chan struct{} // closed under the lock when it can begin
	granted bool
}

func newLine(slots int) line {
	return line{slots: slots, rows: map[string]*row{}}
}

func (l *line) count(tenant string) (running, waiting int) {
	if r := l.rows[tenant]; r != nil {
		return r.running, r.waiting.Len()
	}
	return 0, 0
}

func (l *line) row(tenant string) *row {
	r := l.rows[tenant]
	if r == nil {
		r = &row{}
		l.rows[tenant] = r
	}
	return r
}

// tidy removes an unused row.
func (l *line) tidy(tenant string) {
	r := l.rows[tenant]
	if r.waiting.Len() == 0 {
		if i := slices.Index(l.turns, tenant); i >= 0 {
			l.turns = slices.Delete(l.turns, i, i+1)
		}
		if r.running == 0 {
			delete(l.rows, tenant)
		}
	}
}

// serve assigns free slots to waiting creates.
func (l *line) serve() {
	for l.running < l.slots && len(l.turns) > 0 {
		tenant := l.turns[0]
		l.turns = append(l.turns[1:], tenant)
		r := l.rows[tenant]
		w := r.waiting.Remove(r.waiting.Front()).(*waiter)
		w.granted = true
		close(w.ready)
		l.running++
		r.running++
		l.tidy(tenant)
	}
}

// leave releases a slot.
func (l *line) leave(tenant string) {
	l.running--
	l.rows[tenant].running--
	l.tidy(tenant)
	l.serve()
}

// Turn waits until a create of this tenant can begin. done ends the create and is idempotent. A caller
// whose ctx ends leaves the queue. Turn fails with *Exceeded if too many creates of the tenant wait.
func (k *Keeper) Turn(ctx context.Context, tenant string) (done func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	k.mu.Lock()
	r := k.queue.row(tenant)
	if n := r.waiting.Len(); n >= k.cfg.Queue {
		k.mu.Unlock()
		return nil, &Exceeded{Tenant: tenant, What: Waiting, Limit: int64(k.cfg.Queue), Used: int64(n), Asked: 1, RetryAfter: retryQueue}
	}
	w := &waiter{ready: make(chan struct{})}
	place := r.waiting.PushBack(w)
	if r.waiting.Len() == 1 {
		k.queue.turns = append(k.queue.turns, tenant)
	}
	k.queue.serve()
	k.mu.Unlock()

	done = sync.OnceFunc(func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.queue.leave(tenant)
	})
	select {
	case <-w.ready:
		return done, nil
	case <-ctx.Done():
	}
	k.mu.Lock()
	granted := w.granted
	if !granted {
		r.waiting.Remove(place)
		k.queue.tidy(tenant)
	}
	k.mu.Unlock()
	if granted {
		done() // the slot was assigned at the same time; release it
	}
	return nil, context.Cause(ctx)
}
