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
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ErrClosed is what Start returns after Close.
var ErrClosed = errors.New("runner is closed")

// ErrNotFound is wrapped by Start when the program does not exist. It is an
// [fs.ErrNotExist] too.
var ErrNotFound = fmt.Errorf("program not found: %w", fs.ErrNotExist)

// defaultPath is where programs are looked for when no environment says so.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

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

// User is who a child runs as. Name and Home are for those who build its
// environment.
type User struct {
	UID, GID uint32
	Groups   []uint32
	Name     string
	Home     string
}

// LookupUser finds a user by name or by number in the machine's user database.
func LookupUser(name string) (*User, error) {
	u, err := user.Lookup(name)
	if err != nil {
		if _, nan := strconv.ParseUint(name, 10, 32); nan != nil {
			return nil, fmt.Errorf("look up user %q: %w", name, err)
		}
		if u, err = user.LookupId(name); err != nil {
			return nil, fmt.Errorf("look up user %q: %w", name, err)
		}
	}
	ids, err := u.GroupIds()
	if err != nil {
		return nil, fmt.Errorf("look up the groups of user %q: %w", name, err)
	}
	found := &User{Name: u.Username, Home: u.HomeDir}
	for i, text := range append([]string{u.Uid, u.Gid}, ids...) {
		id, err := strconv.ParseUint(text, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("look up user %q: read id %q: %w", name, text, err)
		}
		switch i {
		case 0:
			found.UID = uint32(id)
		case 1:
			found.GID = uint32(id)
		default:
			found.Groups = append(found.Groups, uint32(id))
		}
	}
	return found, nil
}

// credential is what the kernel is asked for. An unprivileged process that asks
// to become itself asks for nothing, since setgroups would be refused.
func (u *User) credential() *syscall.Credential {
	if u == nil {
		return nil
	}
	if uid := os.Geteuid(); uid != 0 && uid == int(u.UID) && os.Getegid() == int(u.GID) {
		return nil
	}
	return &syscall.Credential{Uid: u.UID, Gid: u.GID, Groups: u.Groups}
}

// Runner starts processes and owns them until Close.
type Runner struct {
	log   *slog.Logger
	env   []string
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
		env:     slices.Clone(cfg.Env),
		user:    cfg.User,
		forks:   &forker{},
		procs:   map[*Process]struct{}{},
		sweepAt: firstSweep,
	}
	if r.log == nil {
		r.log = slog.New(slog.DiscardHandler)
	}
	if r.env == nil {
		r.env = []string{"PATH=" + defaultPath}
	}
	r.bufs.New = func() any { return new([32 << 10]byte) }
	if len(cfg.Guard) > 0 {
		r.guard = &guard{argv: slices.Clone(cfg.Guard), nonce: rand.Text(), log: r.log, forks: r.forks, revive: r.reviveGuard}
	}
	return r
}

// Environ is a copy of the base environment.
func (r *Runner) Environ() []string { return slices.Clone(r.env) }

// Look finds the first of the named programs in the base environment's PATH.
func (r *Runner) Look(names ...string) (path string, ok bool) {
	for _, name := range names {
		if path, ok := look(name, r.env); ok {
			return path, true
		}
	}
	return "", false
}

// look finds a program the way execvp does, except that an empty or relative
// PATH entry, which would run whatever lies in the working directory, counts for nothing.
func look(name string, env []string) (string, bool) {
	if name == "" {
		return "", false
	}
	if strings.Contains(name, "/") {
		return name, executable(name)
	}
	path := ""
	for _, entry := range env {
		if value, ok := strings.CutPrefix(entry, "PATH="); ok {
			path = value
		}
	}
	for _, dir := range filepath.SplitList(path) {
		if full := filepath.Join(dir, name); filepath.IsAbs(full) && executable(full) {
			return full, true
		}
	}
	return "", false
}

func executable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && unix.Access(path, unix.X_OK) == nil
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

// Result is what Run saw.
type Result struct {
	Exit                         Exit
	Stdout, Stderr               []byte // with a marker in the middle when something was dropped
	DroppedStdout, DroppedStderr int64
}

// defaultLimit is how much of each stream Run keeps.
const defaultLimit = 1 << 20

// Run starts a command, keeps the beginning and the end of what it writes, and
// waits for it. A code other than 0 is no error. When ctx ends first the whole
// group is killed, and the result holds what there is. A stream that the
// command names itself is not kept. What the command leaves running in the
// background stays, as after Start; its later output is dropped.
func (r *Runner) Run(ctx context.Context, c Command) (Result, error) {
	if err := context.Cause(ctx); err != nil {
		return Result{Exit: notEnded}, fmt.Errorf("run %s: %w", c.Path, err)
	}
	limit := c.Limit
	if limit <= 0 {
		limit = defaultLimit
	}
	var out, errs *Capture
	if c.TTY == nil {
		out, errs = keep(&c.Stdout, limit), keep(&c.Stderr, limit)
	}
	p, err := r.Start(c)
	if err != nil {
		return Result{Exit: notEnded}, err
	}
	select {
	case <-p.done:
	case <-ctx.Done():
		p.Kill()
		err = fmt.Errorf("run %s: %w", c.Path, context.Cause(ctx))
	}
	res := Result{Exit: p.Exit()}
	res.Stdout, res.DroppedStdout = out.take()
	res.Stderr, res.DroppedStderr = errs.take()
	return res, err
}

func keep(w *io.Writer, limit int) *Capture {
	if *w != nil {
		return nil
	}
	c := NewCapture(limit/2, limit-limit/2)
	*w = c
	return c
}
