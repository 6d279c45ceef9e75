package local

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/isolate"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// spares are inits that were started ahead, so that a create need not wait for
// one. They are no sandboxes: nothing is on record of them, and they end with us.
type spares struct {
	mu     sync.Mutex
	list   []spare
	closed bool
	making bool
	used   time.Time // when a sandbox was last made
}

// calm is how long nobody must have made a sandbox before one is prepared for the
// next: who is being served, and what comes right after, goes first.
const calm = 30 * time.Millisecond

// spare is an init with what it has already of the sandbox that it will be of.
type spare struct {
	*isolate.Spare // nil: there is none
	id             string
	slot           uint32
	group          *isolate.Group
}

// place returns an ID and a range of user IDs for a new sandbox and, if there is
// one, an init that has both.
func (p *Provider) place() (spare, error) {
	s := &p.spares
	s.mu.Lock()
	if n := len(s.list); n > 0 {
		got := s.list[n-1]
		s.list = s.list[:n-1]
		s.mu.Unlock()
		return got, nil
	}
	s.mu.Unlock()
	slot, err := p.slot()
	return spare{id: sandbox.NewID(), slot: slot}, err
}

// vacate gives back what place gave.
func (p *Provider) vacate(s spare) error {
	defer p.freeSlot(s.slot)
	if s.Spare == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return errors.Join(s.Close(), s.group.Remove(ctx))
}

// refill prepares as many as there should be, in the background.
func (p *Provider) refill() {
	s := &p.spares
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used = time.Now()
	if s.closed || s.making || len(s.list) >= p.cfg.Spares || rootless() {
		return
	}
	s.making = true
	p.table.Go(func(ctx context.Context) {
		for s.wait(ctx) && p.prepare(ctx) {
			continue
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.making = false
	})
}

// wait returns when it is calm; false: never again.
func (s *spares) wait(ctx context.Context) bool {
	for {
		s.mu.Lock()
		left := calm - time.Since(s.used)
		s.mu.Unlock()
		if left <= 0 {
			return ctx.Err() == nil
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(left):
		}
	}
}

// prepare makes one more; false: that was the last, or it does not work.
func (p *Provider) prepare(ctx context.Context) bool {
	slot, err := p.slot()
	if err != nil {
		return false
	}
	next := spare{id: sandbox.NewID(), slot: slot}
	if next.group, err = p.groups.Make(next.id, isolate.Limits{}); err == nil {
		if next.Spare, err = isolate.Prepare(ctx, p.init, p.ids(slot), next.group); err != nil {
			err = errors.Join(err, next.group.Remove(context.WithoutCancel(ctx)))
		}
	}
	if err != nil {
		p.freeSlot(slot)
		if ctx.Err() == nil {
			p.cfg.Log.Warn("cannot prepare for the next sandbox", "error", err)
		}
		return false
	}
	s := &p.spares
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = append(s.list, next)
	return len(s.list) < p.cfg.Spares
}

// closeSpares ends those that are left, all at once: the kernel takes its time.
func (p *Provider) closeSpares() error {
	s := &p.spares
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	errs := make([]error, len(s.list))
	var wait sync.WaitGroup
	for i, left := range s.list {
		wait.Go(func() { errs[i] = p.vacate(left) })
	}
	wait.Wait()
	s.list = nil
	return errors.Join(errs...)
}
