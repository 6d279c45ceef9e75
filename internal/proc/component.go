package proc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// Instance is a running thing that can end by itself and can be stopped. One
// that has a method Err() error is asked why it ended.
type Instance interface {
	Done() <-chan struct{}
	Stop()
}

// ErrStopped is what Acquire returns to those who waited for a start that Stop
// called off.
var ErrStopped = errors.New("was stopped")

// Policy says how often a component may fail before it is left alone. The zero
// Policy allows any number of tries without a pause.
type Policy struct {
	Tries  int           // failures within Window after which Acquire fails at once; 0: no bound
	Window time.Duration // 0: failures count for ever
	// Backoff is the pause after a failure; it doubles with every further one up
	// to MaxBackoff (16 × Backoff when 0).
	Backoff    time.Duration
	MaxBackoff time.Duration
}

// next says when the next try may happen after these failures, oldest first, and
// whether it is one that Acquire waits for.
func (p Policy) next(failures []time.Time) (at time.Time, worthwhile bool) {
	n := len(failures)
	if n == 0 {
		return time.Time{}, true
	}
	if p.Tries > 0 && n >= p.Tries {
		if p.Window == 0 {
			return time.Time{}, false
		}
		return failures[n-p.Tries].Add(p.Window), false
	}
	limit := p.MaxBackoff
	if limit == 0 {
		limit = 16 * p.Backoff
	}
	pause := min(p.Backoff, limit)
	for range n - 1 {
		if pause = min(2*pause, limit); pause == limit {
			break
		}
	}
	return failures[n-1].Add(pause), true
}

// Phase is where a component stands.
type Phase string

// The phases of a component.
const (
	Absent   Phase = "absent" // not installed
	Idle     Phase = "idle"   // starts on first need
	Starting Phase = "starting"
	Ready    Phase = "ready"
	Stopping Phase = "stopping"
	Failed   Phase = "failed" // the last try failed or the instance died; the next need may try again
)

// State is a component's phase and, for absent and failed, the reason.
type State struct {
	Phase Phase
	Why   string
}

func (s State) String() string {
	if s.Why == "" {
		return string(s.Phase)
	}
	return string(s.Phase) + ": " + s.Why
}

// ComponentConfig describes a component.
type ComponentConfig[T Instance] struct {
	Name string
	// Start returns when the instance is ready. Its context ends when the
	// component is stopped, never with the request that caused the start.
	Start func(ctx context.Context) (T, error)
	// Idle is how long an instance that nobody holds stays; 0: until Stop.
	Idle    time.Duration
	Restart Policy
	// Installed says which package is missing, nil when none is.
	Installed func() error
	Log       *slog.Logger
}

// Component is something that is started on first need, shared by all who need
// it, replaced when it died and stopped when nobody needs it for a while.
type Component[T Instance] struct {
	cfg ComponentConfig[T]

	mu       sync.Mutex
	phase    Phase // never Absent: that is asked for when it matters
	why      string
	changed  chan struct{} // closed and replaced at each change of phase
	run      *run[T]       // the current one until nothing is left of it; also while failed
	failures []time.Time
}

// run is one start and the instance that came of it.
type run[T Instance] struct {
	instance T
	cancel   context.CancelFunc
	holders  int
	idle     *time.Timer
	stop     chan struct{} // closed to ask its goroutine to stop it
	asked    bool          // stop is closed
	err      error         // why those who wait for it get nothing
	over     chan struct{} // closed by its goroutine when nothing is left of it
}

// NewComponent makes a component. Nothing is started.
func NewComponent[T Instance](cfg ComponentConfig[T]) *Component[T] {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Component[T]{cfg: cfg, phase: Idle, changed: make(chan struct{})}
}

// State tells honestly where the component stands now.
func (c *Component[T]) State() State {
	c.mu.Lock()
	c.bury()
	state := State{c.phase, c.why}
	c.mu.Unlock()
	if state.Phase == Idle || state.Phase == Failed {
		if err := c.installed(); err != nil {
			return State{Absent, err.Error()}
		}
	}
	return state
}

func (c *Component[T]) installed() error {
	if c.cfg.Installed == nil {
		return nil
	}
	return c.cfg.Installed()
}

// Acquire returns the instance and starts it if there is none. The caller holds
// it until release, which may be called more than once. The context bounds only
// the caller's own wait: a start goes on for the others. A pause that the restart
// policy asks for is waited out; when its tries are used up, Acquire fails at once.
func (c *Component[T]) Acquire(ctx context.Context) (instance T, release func(), err error) {
	var mine *run[T] // the start that this call waits for
	for {
		if err := context.Cause(ctx); err != nil {
			return instance, nil, fmt.Errorf("wait for %s: %w", c.cfg.Name, err)
		}
		c.mu.Lock()
		c.bury()
		if c.phase == Ready {
			held := c.run
			held.holders++
			c.disarm(held)
			c.mu.Unlock()
			return held.instance, sync.OnceFunc(func() { c.release(held) }), nil
		}
		pause, err := time.Duration(-1), error(nil)
		if mine != nil && mine.err != nil {
			err = mine.err
		} else if c.run == nil {
			pause, err = c.launch()
		}
		if c.phase == Starting {
			mine = c.run
		}
		changed := c.changed
		c.mu.Unlock()
		if err != nil {
			return instance, nil, err
		}
		awaitChange(ctx, changed, pause)
	}
}

// awaitChange waits for a change, at most for pause unless that is negative.
func awaitChange(ctx context.Context, changed <-chan struct{}, pause time.Duration) {
	var timeout <-chan time.Time
	if pause >= 0 {
		timer := time.NewTimer(pause)
		defer timer.Stop()
		timeout = timer.C
	}
	select {
	case <-changed:
	case <-timeout:
	case <-ctx.Done():
	}
}

// launch begins a start if the policy allows it now. Otherwise it says how long
// to wait, or why there is no use in waiting.
func (c *Component[T]) launch() (time.Duration, error) {
	if err := c.installed(); err != nil {
		return 0, fmt.Errorf("%s is not installed: %w", c.cfg.Name, err)
	}
	now := time.Now()
	if w := c.cfg.Restart.Window; w > 0 {
		for len(c.failures) > 0 && now.Sub(c.failures[0]) >= w {
			c.failures = c.failures[1:]
		}
	}
	at, worthwhile := c.cfg.Restart.next(c.failures)
	if !worthwhile {
		when := ""
		if !at.IsZero() {
			when = fmt.Sprintf(", next try in %s", at.Sub(now).Round(time.Second))
		}
		return 0, fmt.Errorf("%s failed %d times%s: %s", c.cfg.Name, len(c.failures), when, c.why)
	}
	if pause := at.Sub(now); pause > 0 {
		return pause, nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	c.run = &run[T]{cancel: cancel, stop: make(chan struct{}), over: make(chan struct{})}
	c.enter(Starting, "")
	go c.live(ctx, c.run)
	return -1, nil
}

// live is the whole life of one run: start, wait, stop.
func (c *Component[T]) live(ctx context.Context, r *run[T]) {
	defer close(r.over)
	defer r.cancel()
	c.cfg.Log.Debug("component starts", "component", c.cfg.Name)
	instance, err := c.cfg.Start(ctx)

	c.mu.Lock()
	switch {
	case err != nil && !r.asked:
		c.fail(err)
	case !r.asked:
		r.instance = instance
		c.enter(Ready, "")
		c.armIdle(r) // whoever asked for it may have left meanwhile
	}
	c.mu.Unlock()
	if err == nil {
		select {
		case <-r.stop:
		case <-instance.Done():
			c.mu.Lock()
			c.bury()
			c.mu.Unlock()
		}
		instance.Stop() // also what a dead one left behind
	}

	c.mu.Lock()
	c.run = nil
	if c.phase != Failed {
		c.enter(Idle, "")
	} else {
		c.enter(Failed, c.why) // now there is room for the next
	}
	c.mu.Unlock()
}

// bury notices that the instance has died, so that nobody is handed a dead one.
func (c *Component[T]) bury() {
	if c.phase != Ready {
		return
	}
	select {
	case <-c.run.instance.Done():
	default:
		return
	}
	why := errors.New("ended by itself")
	if e, ok := any(c.run.instance).(interface{ Err() error }); ok {
		if err := e.Err(); err != nil {
			why = fmt.Errorf("%w: %w", why, err)
		}
	}
	c.fail(why)
}

// fail notes that the current run came to an end that nobody wanted.
func (c *Component[T]) fail(why error) {
	c.failures = append(c.failures, time.Now())
	if n := max(c.cfg.Restart.Tries, 32); len(c.failures) > n {
		c.failures = c.failures[len(c.failures)-n:]
	}
	c.cfg.Log.Warn("component failed", "component", c.cfg.Name, "error", why)
	c.run.err = fmt.Errorf("%s failed: %w", c.cfg.Name, why)
	c.disarm(c.run)
	c.enter(Failed, why.Error())
}

func (c *Component[T]) enter(phase Phase, why string) {
	c.phase, c.why = phase, why
	close(c.changed)
	c.changed = make(chan struct{})
}

func (c *Component[T]) release(r *run[T]) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r.holders--
	c.armIdle(r)
}

func (c *Component[T]) disarm(r *run[T]) {
	if r.idle != nil {
		r.idle.Stop()
		r.idle = nil
	}
}

// armIdle lets an instance that nobody holds end after a while.
func (c *Component[T]) armIdle(r *run[T]) {
	if c.run != r || c.phase != Ready || r.holders > 0 || c.cfg.Idle <= 0 {
		return
	}
	c.disarm(r)
	r.idle = time.AfterFunc(c.cfg.Idle, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		// It may have fired just before someone took hold.
		if c.run == r && c.phase == Ready && r.holders == 0 {
			c.cfg.Log.Debug("component stops, nobody needs it", "component", c.cfg.Name)
			c.ask(r)
		}
	})
}

// ask begins the end of a run.
func (c *Component[T]) ask(r *run[T]) {
	if r.asked {
		return
	}
	r.asked = true
	if c.phase == Starting {
		r.err = fmt.Errorf("%s %w", c.cfg.Name, ErrStopped)
	}
	r.cancel()
	close(r.stop)
	c.disarm(r)
	if c.phase != Failed { // a dead one is being cleared away already
		c.enter(Stopping, "")
	}
}

// Stop ends the instance, also one that is held or just starting, and returns
// when it is gone. Without one it does nothing. The next Acquire starts a new one.
func (c *Component[T]) Stop() {
	c.mu.Lock()
	r := c.run
	if r != nil {
		c.ask(r)
	}
	c.mu.Unlock()
	if r != nil {
		<-r.over
	}
}
