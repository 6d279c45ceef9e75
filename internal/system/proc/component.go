package proc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// Instance is something that runs until it ends by itself or is stopped. It may
// have a method Err() error that returns why it ended.
type Instance interface {
	Done() <-chan struct{}
	Stop()
}

// ErrStopped is the error of Acquire if Stop canceled the start that it waited for.
var ErrStopped = errors.New("was stopped")

// Policy limits the failures of a component before starts are refused. The zero
// Policy allows any number of tries without a pause.
type Policy struct {
	Tries  int           // failures within Window after which Acquire fails at once; 0: no limit
	Window time.Duration // 0: failures count forever
	// Backoff is the pause after a failure; it doubles with every further one up
	// to MaxBackoff (16 × Backoff when 0).
	Backoff    time.Duration
	MaxBackoff time.Duration
}

// next returns when the next try is allowed after these failures, oldest first,
// and whether Acquire waits for it.
func (p Policy) next(failures []time.Time) (at time.Time, wait bool) {
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

// Phase is the state of a component.
type Phase string

// The phases of a component.
const (
	Absent   Phase = "absent" // not installed
	Idle     Phase = "idle"   // starts on first use
	Starting Phase = "starting"
	Ready    Phase = "ready"
	Stopping Phase = "stopping"
	Failed   Phase = "failed" // the last start failed or the instance crashed; the next use may try again
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
	// Idle is the time after which an unused instance is stopped; 0: never.
	Idle    time.Duration
	Restart Policy
	// Installed returns an error that names missing packages, or nil.
	Installed func() error
	Log       *slog.Logger
}

// Component is started on first use, shared by all users, replaced when it
// crashes, and stopped when idle.
type Component[T Instance] struct {
	cfg ComponentConfig[T]

	mu       sync.Mutex
	phase    Phase // never Absent, which is checked on demand
	why      string
	changed  chan struct{} // closed and replaced at each change of phase
	run      *run[T]       // the current run until it is cleaned up, even while failed
	failures []time.Time
}

// run is one start and its instance.
type run[T Instance] struct {
	instance T
	cancel   context.CancelFunc
	holders  int
	idle     *time.Timer
	stop     chan struct{} // closed to request its stop
	stopping bool          // stop is closed
	err      error         // the error for callers that wait for it
	over     chan struct{} // closed when it is cleaned up
}

// NewComponent returns a component. It starts nothing.
func NewComponent[T Instance](cfg ComponentConfig[T]) *Component[T] {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Component[T]{cfg: cfg, phase: Idle, changed: make(chan struct{})}
}

// State returns the current state.
func (c *Component[T]) State() State {
	c.mu.Lock()
	c.checkAlive()
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

// Acquire returns the instance and starts it if necessary. The caller holds it
// until release, which may be called more than once. The context bounds only the
// caller's wait: the start continues for others. Acquire waits as long as the
// restart policy requires; when its tries are used up, Acquire fails at once.
func (c *Component[T]) Acquire(ctx context.Context) (instance T, release func(), err error) {
	var mine *run[T] // the start that this call waits for
	for {
		if err := context.Cause(ctx); err != nil {
			return instance, nil, fmt.Errorf("wait for %s: %w", c.cfg.Name, err)
		}
		c.mu.Lock()
		c.checkAlive()
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

// maxChecks is the number of consecutive failed checks after which
// AcquireWorking fails.
const maxChecks = 3

// AcquireWorking is Acquire for an instance that passes check. An instance that fails the
// check must end: the next round waits for its end and for another instance.
func (c *Component[T]) AcquireWorking(ctx context.Context, check func(T) error) (instance T, release func(), err error) {
	for n := 1; ; n++ {
		instance, release, err = c.Acquire(ctx)
		if err != nil {
			return instance, nil, err
		}
		if err = check(instance); err == nil {
			return instance, release, nil
		}
		release()
		if ctx.Err() != nil || n == maxChecks {
			return instance, nil, err
		}
		select {
		case <-instance.Done():
		case <-ctx.Done():
		}
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

// launch begins a start if the policy allows it now. Otherwise it returns how
// long to wait, or why waiting is useless.
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
	go c.runInstance(ctx, c.run)
	return -1, nil
}

// runInstance starts an instance, waits for its end and stops it.
func (c *Component[T]) runInstance(ctx context.Context, r *run[T]) {
	defer close(r.over)
	defer r.cancel()
	c.cfg.Log.Debug("component starting", "component", c.cfg.Name)
	instance, err := c.cfg.Start(ctx)

	c.mu.Lock()
	switch {
	case err != nil && !r.stopping:
		c.fail(err)
	case !r.stopping:
		r.instance = instance
		c.enter(Ready, "")
		c.armIdle(r) // the caller may have released it meanwhile
	}
	c.mu.Unlock()
	if err == nil {
		select {
		case <-r.stop:
		case <-instance.Done():
			c.mu.Lock()
			c.checkAlive()
			c.mu.Unlock()
		}
		instance.Stop() // cleans up after a crash, too
	}

	c.mu.Lock()
	c.run = nil
	if c.phase != Failed {
		c.enter(Idle, "")
	} else {
		c.enter(Failed, c.why) // wakes callers, which may start the next run
	}
	c.mu.Unlock()
}

// checkAlive detects that the instance has ended, so that no caller gets an ended one.
func (c *Component[T]) checkAlive() {
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

// fail records that the current run failed.
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

// armIdle starts the idle timer of an instance without holders.
func (c *Component[T]) armIdle(r *run[T]) {
	if c.run != r || c.phase != Ready || r.holders > 0 || c.cfg.Idle <= 0 {
		return
	}
	c.disarm(r)
	r.idle = time.AfterFunc(c.cfg.Idle, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		// It may have fired just before an Acquire.
		if c.run == r && c.phase == Ready && r.holders == 0 {
			c.cfg.Log.Debug("component idle, stopping", "component", c.cfg.Name)
			c.requestStop(r)
		}
	})
}

// requestStop makes the goroutine of a run stop it.
func (c *Component[T]) requestStop(r *run[T]) {
	if r.stopping {
		return
	}
	r.stopping = true
	if c.phase == Starting {
		r.err = fmt.Errorf("%s %w", c.cfg.Name, ErrStopped)
	}
	r.cancel()
	close(r.stop)
	c.disarm(r)
	if c.phase != Failed { // a failed one is already being cleaned up
		c.enter(Stopping, "")
	}
}

// Stop stops the instance, even one that is held or starting, and returns when
// it has ended. The next Acquire starts a new one.
func (c *Component[T]) Stop() {
	c.mu.Lock()
	r := c.run
	if r != nil {
		c.requestStop(r)
	}
	c.mu.Unlock()
	if r != nil {
		<-r.over
	}
}
