// Package proc starts programs and ends them: it is the one door through which
// this module runs anything.
//
// It owns every child from fork to reap: its process group, the goroutine that
// alone waits for it, the pipes and the goroutines that copy its output, and
// the guard that cleans up when this program is killed. It refuses shell
// strings, environments taken from the parent behind the caller's back, output
// without a bound, and signals to a process that may no longer be ours.
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

// Config is what a Runner works with.
type Config struct {
	Log *slog.Logger
	// Env is the base environment of children. The caller has taken the secrets
	// out. Nil means nothing but a PATH.
	Env []string
	// User is who children run as unless their Command says otherwise. Nil: same user.
	User *User
	// Guard is the argv of a program that calls [GuardMain], usually the own
	// binary: {"/proc/self/exe", "guard"}. Nil: no guard, children are then only
	// bound by the parent-death signal, which their descendants do not inherit.
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

	// life is held for reading while a process is started, so that Close sees
	// either a started process or a refused start, never one in between.
	life   sync.RWMutex
	closed bool
	end    sync.Once

	mu      sync.Mutex
	procs   map[*Process]struct{}
	sweepAt int // how many entries procs may have before the dead ones are looked for
}

// firstSweep is how many processes are tracked before the first look for those
// whose background members ended unseen.
const firstSweep = 64

// New makes a Runner. It starts nothing: no thread, no guard.
func New(cfg Config) *Runner {
	r := &Runner{
		log:     cfg.Log,
		user:    cfg.User,
		forks:   &forker{},
		procs:   map[*Process]struct{}{},
		sweepAt: firstSweep,
	}
	if r.log == nil {
		r.log = slog.New(slog.DiscardHandler)
	}
	r.setEnv(cfg.Env)
	r.bufs.New = func() any { return new([32 << 10]byte) }
	if len(cfg.Guard) > 0 {
		r.guard = &guard{argv: slices.Clone(cfg.Guard), nonce: rand.Text(), log: r.log, forks: r.forks, revive: r.reviveGuard}
	}
	return r
}

// Environ is a copy of the base environment.
func (r *Runner) Environ() []string { return slices.Clone(*r.env.Load()) }

func (r *Runner) setEnv(env []string) {
	if env = slices.Clone(env); env == nil {
		env = []string{"PATH=" + defaultPath}
	}
	r.env.Store(&env)
}

// Warm starts ahead what the first Start would have to start besides its program.
func (r *Runner) Warm() {
	if r.guard != nil {
		r.reviveGuard()
	}
}

// Rebase replaces the base environment before anything was started with it;
// afterwards it is refused, since what runs could no longer be told from what
// would run.
func (r *Runner) Rebase(env []string) error {
	r.life.Lock()
	defer r.life.Unlock()
	if r.used.Load() {
		return errors.New("change the base environment: processes were started with it")
	}
	r.setEnv(env)
	return nil
}

// Info tells about one process.
type Info struct {
	PID     int
	Path    string
	Started time.Time
	// Background is true when the child itself has ended and what it left in its
	// group lives on.
	Background bool
}

// Living lists the processes that this runner would have to stop, oldest first.
func (r *Runner) Living() []Info {
	r.sweep()
	r.mu.Lock()
	defer r.mu.Unlock()
	var living []Info
	for p := range r.procs {
		reaped, gone := p.state()
		if !gone {
			living = append(living, Info{PID: p.pid, Path: p.path, Started: p.started, Background: reaped})
		}
	}
	slices.SortFunc(living, func(a, b Info) int { return a.Started.Compare(b.Started) })
	return living
}

// Close stops every living process at once, also what had left its group but
// still carries the guard's mark, and lets the guard go. It may be called more
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

// track makes p the runner's to stop. Background processes that end leave no
// event, so entries are checked when their number has doubled: cheap on
// average, and what ended is never kept for ever.
func (r *Runner) track(p *Process) {
	r.mu.Lock()
	r.procs[p] = struct{}{}
	full := len(r.procs) >= r.sweepAt
	r.mu.Unlock()
	if r.guard != nil {
		r.guard.enter(p)
	}
	if full {
		r.sweep()
		r.mu.Lock()
		r.sweepAt = 2*len(r.procs) + firstSweep
		r.mu.Unlock()
	}
}

// sweep forgets the processes of which nothing is left.
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
		r.guard.leave(p)
	}
}

// reviveGuard replaces a guard that died, unless the runner is closing.
func (r *Runner) reviveGuard() {
	r.life.RLock()
	defer r.life.RUnlock()
	if !r.closed {
		r.guard.up()
	}
}
