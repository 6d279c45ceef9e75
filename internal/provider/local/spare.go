package local

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/isolate"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// spares are inits that were started ahead, so that a create need not wait for
// one. They are no sandboxes: nothing is on record of them, and they end with us.
//
// As many wait as were lately missed: a machine on which sandboxes come one by one
// does not pay for hundred, and one on which they come by the hundred serves the next
// hundred sooner.
type spares struct {
	mu     sync.Mutex
	list   []spare
	closed bool
	making bool
	used   time.Time // when a sandbox was last made
	asking int       // how many are being made
	want   int       // how many there shall be
	until  time.Time // when that is more than it need be
}

// calm is how long nobody must have made a sandbox before one is prepared for the
// next: who is being served, and what comes right after, goes first.
const calm = 30 * time.Millisecond

// rememberRush is for how long there are as many as a rush missed.
const rememberRush = 10 * time.Minute

// ask counts one sandbox that is asked for. In a rush, when more are being made than
// there are always spares for, each that finds none is remembered.
func (s *spares) ask(now time.Time, least, most int) {
	if s.asking++; s.asking <= least {
		return
	}
	s.until = now.Add(rememberRush)
	if len(s.list) == 0 && s.want < most {
		s.want++
	}
}

// spareable takes away what is more than there shall be now.
func (s *spares) spareable(now time.Time, least int) []spare {
	if now.After(s.until) || s.want < least {
		s.want = least
	}
	n := min(len(s.list), s.want)
	extra := slices.Clone(s.list[n:])
	s.list = s.list[:n]
	return extra
}

// spare is an init with what it has already of the sandbox that it will be of.
type spare struct {
	*isolate.Spare // nil: there is none
	id             string
	slot           uint32
	group          *isolate.Group
}

// place returns an ID and a range of user IDs for a new sandbox and, if there is
// one, an init that has both. Placed must follow.
func (p *Provider) place() (spare, error) {
	s := &p.spares
	s.mu.Lock()
	s.ask(time.Now(), p.cfg.Spares, p.cfg.MostSpares)
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

// placed counts one that was made, or not, and sees to the next.
func (p *Provider) placed() {
	s := &p.spares
	s.mu.Lock()
	s.asking--
	s.used = time.Now()
	s.mu.Unlock()
	p.refill()
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
	if s.closed || s.making || len(s.list) >= s.want || rootless() {
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
	return len(s.list) < s.want
}

// trim ends those that nobody has asked for in a long time.
func (p *Provider) trim(now time.Time) {
	p.spares.mu.Lock()
	extra := p.spares.spareable(now, p.cfg.Spares)
	p.spares.mu.Unlock()
	if len(extra) == 0 {
		return
	}
	p.table.Go(func(context.Context) {
		for _, s := range extra {
			if err := p.vacate(s); err != nil {
				p.cfg.Log.Warn("cannot end what was prepared for sandboxes", "error", err)
			}
		}
	})
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
