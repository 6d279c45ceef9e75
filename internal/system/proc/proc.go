// Package proc starts and stops programs. Services start all processes through it;
// only package isolate, which builds sandboxes, starts processes itself.
//
// It owns every child from fork to reap: its process group, the only goroutine
// that waits for it, the pipes and the goroutines that copy its output, and
// the guard that cleans up when this program is killed. It supports no shell
// strings, implicitly inherited environments or unbounded output, and never
// signals a process that may not belong to it.
package proc

import (
	"crypto/rand"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// ErrClosed is what Start returns after Close.
var ErrClosed = errors.New("runner is closed")

// Config configures a Runner.
type Config struct {
	Log *slog.Logger
	// Env is the base environment of children, without secrets. Nil means only a
	// PATH.
	Env []string
	// User is the user of children whose Command has none. Nil: same user.
	User *User
	// Guard is the argv of a program that calls [GuardMain], usually this
	// binary: {"/proc/self/exe", "guard"}. Nil: no guard; only the parent-death
	// signal then ends children, and their descendants do not inherit it.
	Guard []string
}

// Runner starts processes and owns them until Close.
type Runner struct {
	log   *slog.Logger
	env   atomic.Pointer[[]string]
	used  atomic.Bool // something was started
	user  *User
	forks *forker
	guard *guard // nil when not configured
	bufs  sync.Pool

	// life is read-locked while a process starts, so that Close sees either a
	// started process or a refused start.
	life   sync.RWMutex
	closed bool
	end    sync.Once

	mu      sync.Mutex
	procs   map[*Process]struct{}
	sweepAt int // number of entries in procs at which ended ones are removed
}

// firstSweep is the number of tracked processes at which ended ones are removed
// for the first time.
const firstSweep = 64

// New returns a Runner. It starts no thread and no guard.
func New(cfg Config) *Runner {
	r := &Runner{
		log:     cfg.Log,
		user:    cfg.User,
		procs:   map[*Process]struct{}{},
		sweepAt: firstSweep,
	}
	if r.log == nil {
		r.log = slog.New(slog.DiscardHandler)
	}
	r.forks = &forker{log: r.log}
	r.setEnv(cfg.Env)
	r.bufs.New = func() any { return new([32 << 10]byte) }
	if len(cfg.Guard) > 0 {
		r.guard = &guard{argv: slices.Clone(cfg.Guard), nonce: rand.Text(), log: r.log, forks: r.forks, revive: r.reviveGuard}
	}
	return r
}

// Environ returns a copy of the base environment.
func (r *Runner) Environ() []string { return slices.Clone(*r.env.Load()) }

func (r *Runner) setEnv(env []string) {
	if env = slices.Clone(env); env == nil {
		env = []string{"PATH=" + defaultPath}
	}
	r.env.Store(&env)
}

// Warm starts the guard in advance of the first Start.
func (r *Runner) Warm() {
	if r.guard != nil {
		r.reviveGuard()
	}
}

// Rebase replaces the base environment. It fails after the first Start, because
// running processes would have another environment than new ones.
func (r *Runner) Rebase(env []string) error {
	r.life.Lock()
	defer r.life.Unlock()
	if r.used.Load() {
		return errors.New("change the base environment: processes already use it")
	}
	r.setEnv(env)
	return nil
}

// Amend replaces the base environment of processes that start later.
func (r *Runner) Amend(env []string) { r.setEnv(env) }

// Info describes a process.
type Info struct {
	PID     int
	Path    string
	Started time.Time
	// Background is true when the child has ended but other processes in its group
	// are running.
	Background bool
}

// Living lists the running processes, oldest first.
func (r *Runner) Living() []Info {
	r.sweep()
	r.mu.Lock()
	defer r.mu.Unlock()
	var living []Info
	for p := range r.procs {
		reaped, ended := p.state()
		if !ended {
			living = append(living, Info{PID: p.pid, Path: p.path, Started: p.started, Background: reaped})
		}
	}
	slices.SortFunc(living, func(a, b Info) int { return a.Started.Compare(b.Started) })
	return living
}

// Close stops all running processes at once, including those that left their
// group but carry the guard's mark, and then the guard. It may be called more
// than once; Start fails afterwards.
func (r *Runner) Close() error {
	r.end.Do(func() {
		r.life.Lock()
		r.closed = true
		r.life.Unlock()

		r.mu.Lock()
		procs := slices.Collect(maps.Keys(r.procs))
		r.mu.Unlock()
		var wg sync.WaitGroup
		for _, p := range procs {
			wg.Go(func() { p.Stop() })
		}
		wg.Wait()

		if r.guard != nil {
			r.guard.close()
		}
		r.forks.close()
	})
	return nil
}

// track adds p to the processes that Close stops. The end of a background
// process causes no event, so entries are checked when their number has doubled:
// that is cheap on average and bounds the number of ended ones.
func (r *Runner) track(p *Process) {
	r.mu.Lock()
	r.procs[p] = struct{}{}
	full := len(r.procs) >= r.sweepAt
	r.mu.Unlock()
	if r.guard != nil {
		r.guard.register(p)
	}
	if full {
		r.sweep()
		r.mu.Lock()
		r.sweepAt = 2*len(r.procs) + firstSweep
		r.mu.Unlock()
	}
}

// sweep removes processes whose group has ended.
func (r *Runner) sweep() {
	r.mu.Lock()
	var reaped []*Process
	for p := range r.procs {
		if yes, _ := p.state(); yes {
			reaped = append(reaped, p)
		}
	}
	r.mu.Unlock()
	read := sync.OnceValues(processes)
	for _, p := range reaped {
		p.settleIn(read)
	}
}

func (r *Runner) forget(p *Process) {
	r.mu.Lock()
	_, tracked := r.procs[p]
	delete(r.procs, p)
	r.mu.Unlock()
	if tracked && r.guard != nil {
		r.guard.unregister(p)
	}
}

// reviveGuard replaces a guard that died, unless the runner is closing.
func (r *Runner) reviveGuard() {
	r.life.RLock()
	defer r.life.RUnlock()
	if !r.closed {
		r.guard.ensureRunning()
	}
}
