package proc

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// thing is an instance that does nothing until it is stopped.
type thing struct {
	id      int
	done    chan struct{}
	once    sync.Once
	stopped bool
	why     error
}

func (x *thing) Done() <-chan struct{} { return x.done }
func (x *thing) Stop()                 { x.stopped = true; x.die() }
func (x *thing) Err() error            { return x.why }
func (x *thing) die()                  { x.once.Do(func() { close(x.done) }) }

// factory makes things and counts them.
type factory struct {
	mu   sync.Mutex
	made []*thing
	took time.Duration
	err  error
}

func (f *factory) start(ctx context.Context) (*thing, error) {
	select {
	case <-time.After(f.took):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	x := &thing{id: len(f.made), done: make(chan struct{})}
	f.made = append(f.made, x)
	return x, f.err
}

func (f *factory) component(cfg ComponentConfig[*thing]) *Component[*thing] {
	cfg.Name, cfg.Start = "thing", f.start
	return NewComponent(cfg)
}

func phase(t *testing.T, c *Component[*thing], want string) {
	t.Helper()
	synctest.Wait()
	if got := c.State().String(); got != want {
		t.Errorf("state %q, want %q", got, want)
	}
}

func acquire(t *testing.T, c *Component[*thing]) (*thing, func()) {
	t.Helper()
	x, release, err := c.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return x, release
}

func TestComponentStartsOnceForAll(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &factory{took: time.Second}
		c := f.component(ComponentConfig[*thing]{Idle: time.Minute})
		phase(t, c, "idle")
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				x, release := acquire(t, c)
				if x.id != 0 {
					t.Errorf("got thing %d, want id 0", x.id)
				}
				release()
				release()
			})
		}
		phase(t, c, "starting")
		wg.Wait()
		phase(t, c, "ready")
		c.Stop()
		c.Stop()
		phase(t, c, "idle")
		if len(f.made) != 1 || !f.made[0].stopped {
			t.Errorf("made %d, want 1 that was stopped", len(f.made))
		}
	})
}

func TestComponentStopsWhenIdle(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &factory{}
		c := f.component(ComponentConfig[*thing]{Idle: time.Minute})
		first, release1 := acquire(t, c)
		_, release2 := acquire(t, c)
		release1()
		testenv.Advance(time.Hour) // a holder keeps it
		phase(t, c, "ready")
		release2()
		testenv.Advance(time.Minute - 1)
		phase(t, c, "ready")
		same, release3 := acquire(t, c) // restarts the timer
		if same != first {
			t.Errorf("another one, want same %v", first)
		}
		release3()
		testenv.Advance(time.Minute - 1)
		phase(t, c, "ready")
		testenv.Advance(time.Nanosecond)
		phase(t, c, "idle")
		if !first.stopped {
			t.Error("not stopped")
		}
		if second, release := acquire(t, c); second.id != 1 {
			t.Errorf("got thing %d, want id 1", second.id)
		} else {
			release()
		}
		c.Stop()
	})
}

func TestComponentCallerMayCancelDuringTheStart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &factory{took: 10 * time.Second}
		c := f.component(ComponentConfig[*thing]{Idle: time.Minute})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, _, err := c.Acquire(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want context.DeadlineExceeded", err)
		}
		phase(t, c, "starting")
		testenv.Advance(9 * time.Second)
		phase(t, c, "ready")
		testenv.Advance(time.Minute) // no caller holds it
		phase(t, c, "idle")
		if _, _, err := c.Acquire(ctx); !errors.Is(err, context.DeadlineExceeded) || len(f.made) != 1 {
			t.Errorf("with an ended context: %v, want context.DeadlineExceeded and 1 start", err)
		}
	})
}

func TestComponentRestartsWithinItsPolicy(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &factory{}
		c := f.component(ComponentConfig[*thing]{Restart: Policy{Tries: 3, Window: time.Minute, Backoff: time.Second}})
		begin := time.Now()
		for i, at := range []time.Duration{0, time.Second, 3 * time.Second} {
			x, release := acquire(t, c)
			if x.id != i || time.Since(begin) != at {
				t.Errorf("thing %d after %v, want %d after %v", x.id, time.Since(begin), i, at)
			}
			x.why = errors.New("crashed")
			x.die()
			phase(t, c, "failed: ended by itself: crashed")
			release()
			if !x.stopped {
				t.Error("the ended instance was not stopped")
			}
		}
		_, _, err := c.Acquire(t.Context())
		if err == nil || !strings.Contains(err.Error(), "failed 3 times, next try in 57s: ended by itself: crashed") {
			t.Errorf("got %v, want an error containing \"failed 3 times, next try in 57s: ended by itself: crashed\"", err)
		}
		testenv.Advance(time.Minute - 3*time.Second)
		if x, _ := acquire(t, c); x.id != 3 {
			t.Errorf("thing %d, want id 3", x.id)
		}
		c.Stop()
		phase(t, c, "idle")
	})
}

func TestComponentFailedStart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &factory{took: time.Second, err: errors.New("no display")}
		c := f.component(ComponentConfig[*thing]{})
		var wg sync.WaitGroup
		for range 5 {
			wg.Go(func() {
				if _, _, err := c.Acquire(t.Context()); !errors.Is(err, f.err) {
					t.Errorf("got %v, want %v", err, f.err)
				}
			})
		}
		wg.Wait()
		phase(t, c, "failed: no display")
		if len(f.made) != 1 {
			t.Errorf("%d starts for one need, want 1 start", len(f.made))
		}
		f.err = nil
		_, release := acquire(t, c)
		release()
		phase(t, c, "ready")
		c.Stop()
	})
}

func TestComponentStopCancelsTheStart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &factory{took: time.Hour}
		c := f.component(ComponentConfig[*thing]{Restart: Policy{Tries: 1}})
		got := make(chan error)
		go func() {
			_, _, err := c.Acquire(t.Context())
			got <- err
		}()
		phase(t, c, "starting")
		go c.Stop()
		c.Stop()
		if err := <-got; !errors.Is(err, ErrStopped) {
			t.Errorf("got %v, want %v", err, ErrStopped)
		}
		phase(t, c, "idle") // no failure
		if len(f.made) != 0 {
			t.Errorf("made %d, want no made", len(f.made))
		}
	})
}

func TestComponentThatIsNotInstalled(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		missing := errors.New("install the package things")
		there := false
		f := &factory{}
		c := f.component(ComponentConfig[*thing]{Installed: func() error {
			if there {
				return nil
			}
			return missing
		}})
		phase(t, c, "absent: install the package things")
		if _, _, err := c.Acquire(t.Context()); !errors.Is(err, missing) {
			t.Errorf("got %v, want %v", err, missing)
		}
		there = true
		phase(t, c, "idle")
		_, release := acquire(t, c)
		release()
		c.Stop()
	})
}

func TestAcquireWorkingReplacesFailingInstances(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &factory{}
		c := f.component(ComponentConfig[*thing]{})
		hung := errors.New("hung")
		check := func(good int) func(*thing) error {
			return func(x *thing) error {
				if x.id >= good {
					return nil
				}
				x.die()
				return hung
			}
		}
		x, release, err := c.AcquireWorking(t.Context(), check(2))
		if err != nil || x.id != 2 {
			t.Fatalf("got thing %+v, %v, want the third", x, err)
		}
		release()
		if _, _, err := c.AcquireWorking(t.Context(), check(100)); !errors.Is(err, hung) || len(f.made) != 2+maxChecks {
			t.Errorf("got %v after %d starts, want %v after %d", err, len(f.made), hung, 2+maxChecks)
		}
		c.Stop()
	})
}

func TestLifetimeEndsOnce(t *testing.T) {
	t.Parallel()
	l := NewLifetime()
	if l.Ended() || l.Err() != nil {
		t.Errorf("new: ended %v, %v, want neither", l.Ended(), l.Err())
	}
	first := errors.New("first")
	l.End(first)
	l.End(errors.New("second"))
	if !l.Ended() || l.Err() != first {
		t.Errorf("ended %v, %v, want true, %v", l.Ended(), l.Err(), first)
	}
	<-l.Done()
}

// lingering stops slowly.
type lingering struct{ *thing }

func (x lingering) Stop() {
	<-time.After(5 * time.Second)
	x.thing.Stop()
}

// TestComponentHasOneInstance: two concurrent instances would conflict over a profile or a port.
func TestComponentHasOneInstance(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &factory{}
		c := NewComponent(ComponentConfig[lingering]{Name: "thing", Idle: time.Second,
			Start: func(ctx context.Context) (lingering, error) {
				if n := len(f.made); n > 0 && !f.made[n-1].stopped {
					t.Error("the previous instance has not ended")
				}
				x, err := f.start(ctx)
				return lingering{x}, err
			}})
		for range 3 {
			_, release, err := c.Acquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			release()
			testenv.Advance(2 * time.Second)
			if got := c.State().Phase; got != Stopping {
				t.Errorf("state %v, want %v", got, Stopping)
			}
		}
		x, _, err := c.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		x.die()
		y, _, err := c.Acquire(t.Context())
		if err != nil || y.thing == x.thing {
			t.Errorf("got the dead one, %v, want thing other than %v", err, x.thing)
		}
		c.Stop()
	})
}

func TestPolicy(t *testing.T) {
	t.Parallel()
	start := time.Now()
	at := func(seconds ...int) (times []time.Time) {
		for _, s := range seconds {
			times = append(times, start.Add(time.Duration(s)*time.Second))
		}
		return times
	}
	for _, c := range []struct {
		name     string
		policy   Policy
		failures []time.Time
		next     time.Time
		worth    bool
	}{
		{"first", Policy{Tries: 1}, nil, time.Time{}, true},
		{"no policy", Policy{}, at(1, 2, 3), at(3)[0], true},
		{"pause", Policy{Backoff: time.Second}, at(5), at(6)[0], true},
		{"pause doubles", Policy{Backoff: time.Second}, at(1, 2, 5), at(9)[0], true},
		{"up to a bound", Policy{Backoff: time.Second, MaxBackoff: 3 * time.Second}, at(1, 2, 3, 4, 5), at(8)[0], true},
		{"bound by default", Policy{Backoff: time.Second}, at(1, 2, 3, 4, 5, 6, 7, 8), at(24)[0], true},
		{"used up", Policy{Tries: 2, Window: time.Minute}, at(1, 2, 3), at(62)[0], false},
		{"indefinitely", Policy{Tries: 2}, at(1, 2), time.Time{}, false},
	} {
		if next, worth := c.policy.next(c.failures); !next.Equal(c.next) || worth != c.worth {
			t.Errorf("%s: got %v, %v, want %v, %v", c.name, next.Sub(start), worth, c.next.Sub(start), c.worth)
		}
	}
}
