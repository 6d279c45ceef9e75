package runner

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/sandbox"
	"github.com/cove-sandbox/cove/internal/system/isolate"
	"github.com/cove-sandbox/cove/internal/system/isolate/cgroup"
)

// spares are inits that were started ahead, so that a create need not wait for one.
// They are no sandboxes: nothing is recorded of them, and they end with us.
//
// As many are kept as were recently missed: a machine on which sandboxes are created
// one by one does not pay for a hundred, and one on which they come by the hundred
// serves the next hundred sooner.
type spares struct {
	min, max   int
	groups     *cgroup.Root
	ids        *idRanges
	init       []string
	background func(func(context.Context))
	log        *slog.Logger

	mu        sync.Mutex
	list      []spare
	closed    bool
	preparing bool
	lastUsed  time.Time // when a sandbox was last created
	creating  int       // how many are being created
	want      int       // how many to keep
	until     time.Time // when want falls back to min
}

// spare is an init with what it already has of its future sandbox.
type spare struct {
	init  *isolate.Spare // nil: none was ready
	id    string
	slot  uint32
	group *cgroup.Group
}

// quietTime is how long nobody must have created a sandbox before a spare is
// prepared: whoever is being served, and what follows at once, goes first.
const quietTime = 30 * time.Millisecond

// rememberBurst is how long as many are kept as a burst missed.
const rememberBurst = 10 * time.Minute

// start prepares the first ones.
func (s *spares) start() {
	s.mu.Lock()
	s.want = s.min
	s.mu.Unlock()
	s.refill()
}

// count notes a sandbox that is being created. In a burst, when more are being
// created than there are always spares for, each that finds none raises want.
func (s *spares) count(now time.Time) {
	if s.creating++; s.creating <= s.min {
		return
	}
	s.until = now.Add(rememberBurst)
	if len(s.list) == 0 && s.want < s.max {
		s.want++
	}
}

// takeExtra removes and returns those beyond what is wanted now.
func (s *spares) takeExtra(now time.Time) []spare {
	if now.After(s.until) || s.want < s.min {
		s.want = s.min
	}
	n := min(len(s.list), s.want)
	extra := slices.Clone(s.list[n:])
	s.list = s.list[:n]
	return extra
}

// take returns an ID and a range of user IDs for a new sandbox and, if one is ready,
// an init that has both. Done must follow.
func (s *spares) take() (spare, error) {
	s.mu.Lock()
	s.count(time.Now())
	if n := len(s.list); n > 0 {
		got := s.list[n-1]
		s.list = s.list[:n-1]
		s.mu.Unlock()
		return got, nil
	}
	s.mu.Unlock()
	slot, err := s.ids.take()
	return spare{id: sandbox.NewID(), slot: slot}, err
}

// done notes that a create has ended, and prepares the next.
func (s *spares) done() {
	s.mu.Lock()
	s.creating--
	s.lastUsed = time.Now()
	s.mu.Unlock()
	s.refill()
}

// discardTimeout bounds the end of a spare.
const discardTimeout = time.Minute

// discard ends a spare and frees what it had.
func (s *spares) discard(x spare) error {
	defer s.ids.free(x.slot)
	if x.init == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), discardTimeout)
	defer cancel()
	return errors.Join(x.init.Close(), x.group.Remove(ctx))
}

// refill prepares as many as are wanted, in the background.
func (s *spares) refill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.preparing || len(s.list) >= s.want || rootless() {
		return
	}
	s.preparing = true
	s.background(func(ctx context.Context) {
		for s.waitQuiet(ctx) && s.prepare(ctx) {
			continue
		}
	})
}

// waitQuiet returns true when it is quiet, and false when ctx has ended, which ends the refill.
func (s *spares) waitQuiet(ctx context.Context) bool {
	for {
		s.mu.Lock()
		left := quietTime - time.Since(s.lastUsed)
		s.mu.Unlock()
		if left <= 0 && ctx.Err() == nil {
			return true
		}
		select {
		case <-ctx.Done():
			return s.goOn(false)
		case <-time.After(left):
		}
	}
}

// prepare adds one. It returns false if that was the last, or if it failed.
func (s *spares) prepare(ctx context.Context) (more bool) {
	slot, err := s.ids.take()
	if err != nil {
		return s.goOn(false)
	}
	next := spare{id: sandbox.NewID(), slot: slot}
	if next.group, err = s.groups.Create(next.id, cgroup.Limits{}); err == nil {
		if next.init, err = isolate.Prepare(ctx, s.init, s.ids.of(slot), next.group); err != nil {
			err = errors.Join(err, next.group.Remove(context.WithoutCancel(ctx)))
		}
	}
	if err != nil {
		s.ids.free(slot)
		if ctx.Err() == nil {
			s.log.Warn("cannot prepare for the next sandbox", "error", err)
		}
		return s.goOn(false)
	}
	return s.goOn(true, next)
}

// goOn adds spares, and returns whether the refill goes on: if it can, and more are wanted. One that
// is taken from now on begins the next refill.
func (s *spares) goOn(can bool, add ...spare) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = append(s.list, add...)
	s.preparing = can && len(s.list) < s.want
	return s.preparing
}

// trim ends those that nobody has needed in a long time, in the background.
func (s *spares) trim(now time.Time) {
	s.mu.Lock()
	extra := s.takeExtra(now)
	s.mu.Unlock()
	if len(extra) == 0 {
		return
	}
	s.background(func(context.Context) {
		for _, x := range extra {
			if err := s.discard(x); err != nil {
				s.log.Warn("cannot end a process prepared for a sandbox", "error", err)
			}
		}
	})
}

// close ends all that are left, in parallel: the kernel takes its time.
func (s *spares) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	errs := make([]error, len(s.list))
	var wait sync.WaitGroup
	for i, left := range s.list {
		wait.Go(func() { errs[i] = s.discard(left) })
	}
	wait.Wait()
	s.list = nil
	return errors.Join(errs...)
}
