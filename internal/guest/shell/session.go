package shell

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/guest/internal/session"
)

const (
	// defaultNoChange is how long a command may print no output before Exec returns.
	defaultNoChange = 120 * time.Second
	// startLimit is how long a new shell may take until its first prompt.
	startLimit = 10 * time.Second
)

// Session is a named sequence of shells: after a shell exits, the next command starts
// another. It is live while it has a shell.
type Session struct {
	session.Entry
	service  *Service
	starting chan struct{} // holds a token while the shell is being started

	mu       sync.Mutex
	noChange time.Duration
	start    string    // directory in which its shells start
	terminal *terminal // nil: no shell
	last     *command
	records  []Record
	recorded int // bytes in records
}

// newID returns a UUID. The web terminal keeps it in its URL.
func newID() string {
	var b [16]byte
	rand.Read(b[:])
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// find returns the session with an ID.
func (s *Service) find(id string) (*Session, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ss, err := s.sessions.Find(id)
	if err == nil {
		ss.Touch()
	}
	return ss, err
}

// obtain finds or creates the session with an ID. Without an ID it creates one, which may be
// evicted unless keep is set. It does not start a shell.
func (s *Service) obtain(id string, keep bool) (ss *Session, created bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ss, created, err = s.sessions.Reserve(id, func() *Session {
		return &Session{service: s, noChange: defaultNoChange, start: s.Workspace, starting: make(chan struct{}, 1)}
	})
	if err == nil {
		ss.Auto = ss.Auto && !keep
		ss.Touch()
	}
	return ss, created, err
}

// ensureShell returns the session's shell and starts it if there is none.
func (ss *Session) ensureShell(ctx context.Context) (*terminal, error) {
	select {
	case ss.starting <- struct{}{}:
		defer func() { <-ss.starting }()
	case <-ctx.Done():
		return nil, canceled(ctx)
	}
	ss.mu.Lock()
	t := ss.terminal
	ss.mu.Unlock()
	if t != nil {
		return t, nil
	}
	if err := ss.service.admit(ss); err != nil {
		return nil, err
	}
	t, err := ss.openShell(ctx, false)
	var failed *startError
	if errors.As(err, &failed) && !ss.removed() {
		ss.service.Log.Warn("shell did not start with the startup file of the user; starting without it", "session", ss.ID, "error", err)
		t, err = ss.openShell(ctx, true)
	}
	if err != nil {
		ss.service.shellEnded(ss, nil)
		return nil, err
	}
	return t, nil
}

func (ss *Session) removed() bool {
	ss.service.mu.Lock()
	defer ss.service.mu.Unlock()
	return ss.Removed()
}

// startError is the error of a shell that did not show its prompt.
type startError struct{ error }

func (e *startError) Unwrap() error { return e.error }

// openShell starts a shell and waits for its prompt.
func (ss *Session) openShell(ctx context.Context, bare bool) (*terminal, error) {
	t, err := ss.startShell(bare)
	if err != nil {
		return nil, err
	}
	ss.mu.Lock()
	ss.terminal = t
	ss.mu.Unlock()
	wait, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	err = t.waitForPrompt(wait)
	os.Remove(t.path + ".rc")
	if err == nil {
		return t, nil
	}
	t.stop()
	if ctx.Err() != nil {
		return nil, canceled(ctx)
	}
	printed := strings.TrimSpace(strings.Join(t.display.screen.Screen(), "\n"))
	return nil, &startError{op.Errorf(op.Unavailable, "the shell did not show its prompt (%v); it printed %q; check ~/.bashrc",
		t.exit, clip(printed, 500))}
}

func canceled(ctx context.Context) error {
	return op.Errorf(op.Canceled, "the request was canceled: %w", context.Cause(ctx))
}

// admit reserves a place for the session's shell.
func (s *Service) admit(ss *Session) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sessions.Admit(ss)
}

// isIdle reports whether the session is unused: no command, no viewer and, unless
// ignoreJobs, no background job.
func (ss *Session) isIdle(ignoreJobs bool) bool {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	t := ss.terminal
	if t == nil {
		return len(ss.starting) == 0
	}
	return t.current == nil && len(t.display.viewers) == 0 && (ignoreJobs || t.jobs == 0)
}

// stop ends the session's shell.
func (ss *Session) stop() {
	ss.stopShell()
	ss.starting <- struct{}{} // a shell that was being started can be stopped now
	defer func() { <-ss.starting }()
	ss.stopShell()
}

func (ss *Session) stopShell() {
	ss.mu.Lock()
	t := ss.terminal
	ss.mu.Unlock()
	if t != nil {
		t.stop()
	}
}

// shellEnded records that a session no longer has a shell.
func (s *Service) shellEnded(ss *Session, t *terminal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ss.mu.Lock()
	none := ss.terminal == nil
	never := none && ss.last == nil && t == nil
	ss.mu.Unlock()
	// A session whose shell is being restarted stays live.
	if none && (t == nil || len(ss.starting) == 0) {
		s.sessions.Release(ss)
	}
	if never {
		s.sessions.Remove(ss)
	}
}

// cleanup ends the matching sessions in parallel and returns how many had a shell.
func (s *Service) cleanup(matches func(*Session) bool) (live int) {
	s.mu.Lock()
	var all []<-chan struct{}
	for ss := range s.sessions.All() {
		if matches(ss) {
			if ss.Live() {
				live++
			}
			all = append(all, s.sessions.Remove(ss))
		}
	}
	s.mu.Unlock()
	for _, ended := range all {
		<-ended
	}
	return live
}

// startDir returns the directory in which a new shell starts: the requested one, or a
// fallback that exists.
func (ss *Session) startDir() string {
	ss.mu.Lock()
	start := ss.start
	ss.mu.Unlock()
	for _, dir := range []string{start, ss.service.Workspace, ss.service.Home} {
		if info, err := os.Stat(dir); err == nil && info.IsDir() {
			return dir
		}
	}
	return "/"
}

// resolveLinks resolves the symbolic links in a path unless keep is set.
func resolveLinks(dir string, keep bool) string {
	if keep {
		return dir
	}
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		return real
	}
	return dir
}
