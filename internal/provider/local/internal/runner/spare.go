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

// spares are inits that were started in advance, so that a create does not wait for one. They are not sandboxes: they
// are not recorded, and they end with the hub.
//
// Their number adapts to recent bursts: a machine on which sandboxes are created one by one does not keep a hundred,
// and after a burst the next one is faster.
type spares struct {
	min, max   int
	groups     *cgroup.Root
	ids        *idRanges
	sockets    *Sockets
	init       []string
	background func(func(context.Context))
	log        *slog.Logger

	mu        sync.Mutex
	list      []spare
	closed    bool
	preparing bool
	lastUsed  time.Time // when a sandbox was last created
	creating  int       // how many are being created
	target    int       // how many to keep
	until     time.Time // when target is reset to min
}

// spare is an init with the ID, user IDs, folder of sockets and control group of its future sandbox.
type spare struct {
	init  *isolate.Spare // nil: none was ready
	id    string
	slot  uint32
	group *cgroup.Group
}

// idleTime is the time without creates before a spare is prepared, because creates and their next requests have
// priority.
const idleTime = 30 * time.Millisecond

// burstTime is how long the target of a burst is kept.
const burstTime = 10 * time.Minute

// start prepares the first spares.
func (s *spares) start() {
	s.mu.Lock()
	s.target = s.min
	s.mu.Unlock()
	s.refill()
}

// count counts a create. In a burst, with more concurrent creates than the minimum number of spares, each create that
// finds no spare increases the target.
func (s *spares) count(now time.Time) {
	if s.creating++; s.creating <= s.min {
		return
	}
	s.until = now.Add(burstTime)
	if len(s.list) == 0 && s.target < s.max {
		s.target++
	}
}

// takeExcess removes and returns the spares above the target.
func (s *spares) takeExcess(now time.Time) []spare {
	if now.After(s.until) || s.target < s.min {
		s.target = s.min
	}
	n := min(len(s.list), s.target)
	extra := slices.Clone(s.list[n:])
	s.list = s.list[:n]
	return extra
}

// take returns an ID, a range of user IDs and a folder of sockets for a new sandbox and, if one is ready, an init. Call
// done afterwards.
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
	return s.begin()
}

// begin returns a spare without an init.
func (s *spares) begin() (spare, error) {
	slot, err := s.ids.take()
	if err != nil {
		return spare{}, err
	}
	x := spare{id: sandbox.NewID(), slot: slot}
	if err := s.sockets.makeFolders(x.id); err != nil {
		return spare{}, errors.Join(err, s.discard(x))
	}
	return x, nil
}

// done counts the end of a create, and prepares more spares.
func (s *spares) done() {
	s.mu.Lock()
	s.creating--
	s.lastUsed = time.Now()
	s.mu.Unlock()
	s.refill()
}

// discardTimeout bounds the end of a spare.
const discardTimeout = time.Minute

// discard ends a spare and releases its resources.
func (s *spares) discard(x spare) error {
	defer s.ids.free(x.slot)
	err := s.sockets.remove(s.sockets.Dir(x.id))
	if x.init == nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), discardTimeout)
	defer cancel()
	return errors.Join(err, x.init.Close(), x.group.Remove(ctx))
}

// refill prepares spares up to the target, in the background.
func (s *spares) refill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.preparing || len(s.list) >= s.target || rootless() {
		return
	}
	s.preparing = true
	s.background(func(ctx context.Context) {
		for s.waitIdle(ctx) && s.prepare(ctx) {
			continue
		}
	})
}

// waitIdle waits for idleTime without creates. It returns false when ctx has ended, which ends the refill.
func (s *spares) waitIdle(ctx context.Context) bool {
	for {
		s.mu.Lock()
		left := idleTime - time.Since(s.lastUsed)
		s.mu.Unlock()
		if left <= 0 && ctx.Err() == nil {
			return true
		}
		select {
		case <-ctx.Done():
			return s.continueRefill(false)
		case <-time.After(left):
		}
	}
}

// prepare adds a spare. It returns false if no more are required, or if it failed.
func (s *spares) prepare(ctx context.Context) (more bool) {
	next, err := s.begin()
	if err != nil {
		return s.continueRefill(false)
	}
	if next.group, err = s.groups.Create(next.id, cgroup.Limits{}); err == nil {
		if next.init, err = isolate.Prepare(ctx, s.init, s.ids.of(next.slot), next.group); err != nil {
			err = errors.Join(err, next.group.Remove(context.WithoutCancel(ctx)))
		}
	}
	if err != nil {
		err = errors.Join(err, s.discard(spare{id: next.id, slot: next.slot}))
		if ctx.Err() == nil {
			s.log.Warn("cannot prepare a process for the next sandbox", "error", err)
		}
		return s.continueRefill(false)
	}
	return s.continueRefill(true, next)
}

// continueRefill adds spares, and reports whether the refill continues: if ok, and below the target. Otherwise the next
// create starts another refill.
func (s *spares) continueRefill(ok bool, add ...spare) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = append(s.list, add...)
	s.preparing = ok && len(s.list) < s.target
	return s.preparing
}

// trim ends spares that were not required for a long time, in the background.
func (s *spares) trim(now time.Time) {
	s.mu.Lock()
	excess := s.takeExcess(now)
	s.mu.Unlock()
	if len(excess) == 0 {
		return
	}
	s.background(func(context.Context) {
		for _, x := range excess {
			if err := s.discard(x); err != nil {
				s.log.Warn("cannot end a process prepared for a sandbox", "error", err)
			}
		}
	})
}

// close ends all spares concurrently, because the kernel is slow.
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
