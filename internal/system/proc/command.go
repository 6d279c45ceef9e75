package proc

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// Command is a program to start.
type Command struct {
	// Path is a file, or a name to look up in the PATH of the command's
	// environment, or in the runner's if the command has none.
	Path  string
	Args  []string // without argv[0]
	Argv0 string   // argv[0] when it is not Path
	Dir   string
	// Env is the complete environment; only the guard's mark is added.
	// Nil: the runner's base environment.
	Env []string
	// Stdin, Stdout and Stderr: the child inherits an *os.File, nil means
	// /dev/null, all others are copied. A Read of Stdin that blocks keeps its
	// goroutine.
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// TTY is the slave of a pseudo-terminal. It becomes all three streams and the
	// controlling terminal of a new session that the child leads.
	TTY        *os.File
	ExtraFiles []*os.File // from descriptor 3 on
	User       *User
	// Grace is the time between TERM and KILL: 3s when 0, none when negative.
	Grace time.Duration
	// Limit is the number of bytes that Run keeps of each stream: 1 MiB when 0.
	Limit int
	// Session makes the child lead a new session, not only a group. Stop then
	// ends all groups of that session.
	Session bool
}

const defaultGrace = 3 * time.Second

// Start starts a command in its own process group. The process belongs to the
// runner: it runs until it ends or is stopped, independently of requests.
func (r *Runner) Start(c Command) (*Process, error) {
	r.life.RLock()
	defer r.life.RUnlock()
	if r.closed {
		return nil, fmt.Errorf("start %s: %w", c.Path, ErrClosed)
	}
	r.used.Store(true)
	env, base := c.Env, *r.env.Load()
	if env == nil {
		env = base
	}
	path, ok := look(c.Path, searchPath(env, base))
	if !ok && !strings.Contains(c.Path, "/") {
		return nil, fmt.Errorf("start %q: %w in PATH; install it", c.Path, ErrNotFound)
	}
	if r.guard != nil {
		r.guard.ensureRunning()
		env = r.guard.marked(env)
	}
	pl, err := r.openStreams(c)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", c.Path, err)
	}
	started := time.Now()
	pid, err := r.forks.fork(path, c.argv(), &syscall.ProcAttr{Dir: c.Dir, Env: env, Files: pl.files, Sys: r.attributes(c)})
	runtime.KeepAlive(c) // its files were passed as numbers
	pl.release()
	if err != nil {
		pl.abandon()
		return nil, explainStart(c, path, r.userOf(c), err)
	}
	p := &Process{
		r: r, pid: pid, path: path, started: started, grace: c.Grace,
		session: c.Session || c.TTY != nil, tty: c.TTY != nil,
		in: pl.in, outs: pl.outs,
		done: make(chan struct{}), settled: make(chan struct{}),
	}
	if p.grace == 0 {
		p.grace = defaultGrace
	}
	r.track(p)
	p.begin()
	return p, nil
}

func (c Command) argv() []string {
	name := c.Argv0
	if name == "" {
		name = c.Path
	}
	return append([]string{name}, c.Args...)
}

func (r *Runner) userOf(c Command) *User {
	if c.User != nil {
		return c.User
	}
	return r.user
}

func (r *Runner) attributes(c Command) *syscall.SysProcAttr {
	sys := &syscall.SysProcAttr{Credential: r.userOf(c).credential(), Pdeathsig: syscall.SIGKILL}
	switch {
	case c.TTY != nil:
		sys.Setsid, sys.Setctty, sys.Ctty = true, true, 0
	case c.Session:
		sys.Setsid = true
	default:
		sys.Setpgid = true
	}
	return sys
}

// explainStart turns a failed start into an error that names what is missing. The
// kernel returns ENOENT for the program, its interpreter and the directory alike.
func explainStart(c Command, path string, u *User, err error) error {
	if errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ENOTDIR) {
		if c.Dir != "" {
			if _, dirErr := os.Stat(c.Dir); dirErr != nil {
				return fmt.Errorf("start %s: enter working directory: %w", c.Path, dirErr)
			}
			if !filepath.IsAbs(path) {
				path = filepath.Join(c.Dir, path)
			}
		}
		if _, statErr := os.Stat(path); statErr != nil {
			return fmt.Errorf("start %q: %w; install it or correct the path", c.Path, ErrNotFound)
		}
		return fmt.Errorf("start %s: its interpreter or loader is missing: %w", c.Path, err)
	}
	if errors.Is(err, syscall.EPERM) && u != nil {
		return fmt.Errorf("start %s as uid %d: %w; only root can start as another user", c.Path, u.UID, err)
	}
	return fmt.Errorf("start %s: %w", c.Path, err)
}
