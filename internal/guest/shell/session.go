package shell

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/cove-sandbox/cove/internal/op"
)

const (
	// defaultNoChange is how long output may stand still before exec answers.
	defaultNoChange = 120 * time.Second
	// startLimit is how long a new shell may take to show its first prompt.
	startLimit = 10 * time.Second
)

// session is a name under which a shell lives. It outlives its shell: after exit,
// the next command starts another.
type session struct {
	service  *Service
	id       string
	created  time.Time
	starting chan struct{} // holds a token while somebody starts the shell

	// Guarded by the service's lock: has a shell; was removed; nobody asked to keep it.
	live, gone, auto bool

	mu       sync.Mutex
	used     time.Time
	noChange time.Duration
	start    string    // where its shells start
	terminal *terminal // nil: no shell
	last     *command
	records  []Record
	recorded int // bytes in records
}

func newID() string {
	var b [16]byte
	rand.Read(b[:])
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

func checkID(id string) error {
	bad := func(r rune) bool { return r == '/' || !unicode.IsPrint(r) }
	if len(id) > 128 || strings.ContainsFunc(id, bad) {
		return op.Errorf(op.Invalid, "a session's id must have at most 128 printable characters and no slash")
	}
	return nil
}

// find returns the session of that name.
func (s *Service) find(id string) (*session, error) {
	s.mu.Lock()
	ss := s.sessions[id]
	s.mu.Unlock()
	if ss == nil {
		return nil, op.Errorf(op.NotFound, "there is no shell session %q: it was never made, was closed, or expired; GET /v1/shell/sessions lists them", id)
	}
	ss.touch()
	return ss, nil
}

// obtain returns the session of that name and makes it if it is new; without a
// name it makes one, which may be ended to make room unless it is to be kept. Its
// shell is not started yet.
func (s *Service) obtain(id string, keep bool) (ss *session, made bool, err error) {
	if err := checkID(id); err != nil {
		return nil, false, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, false, stopping()
	}
	if ss := s.sessions[id]; ss != nil {
		ss.auto = ss.auto && !keep
		ss.touch()
		return ss, false, nil
	}
	now := time.Now()
	ss = &session{
		service: s, id: id, auto: id == "" && !keep, created: now, used: now, noChange: defaultNoChange, start: s.Workspace,
		starting: make(chan struct{}, 1),
	}
	if id == "" {
		ss.id = newID()
	}
	s.forgetEnded()
	s.sessions[ss.id] = ss
	if s.Idle > 0 && s.sweeper == nil {
		s.tasks.Add(1)
		s.sweeper = time.AfterFunc(s.Idle, s.sweep)
	}
	return ss, true, nil
}

func stopping() error {
	return op.Errorf(op.Unavailable, "the sandbox is stopping; no shell can be started")
}

// forgetEnded keeps the number of sessions without a shell below the limit of
// those with one. The lock is held.
func (s *Service) forgetEnded() {
	var oldest *session
	ended := 0
	for _, ss := range s.sessions {
		if !ss.live && len(ss.starting) == 0 {
			ended++
			if oldest == nil || ss.idleSince().Before(oldest.idleSince()) {
				oldest = ss
			}
		}
	}
	if ended >= s.MaxSessions {
		s.remove(oldest)
	}
}

func (ss *session) touch() {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	ss.used = time.Now()
}

func (ss *session) idleSince() time.Time {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	return ss.used
}

// shell returns the session's shell and starts it if there is none.
func (ss *session) shell(ctx context.Context) (*terminal, error) {
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
	t, err := ss.open(ctx, false)
	var failed *startError
	if errors.As(err, &failed) && !ss.removed() {
		ss.service.Log.Warn("shell starts without the user's startup file", "session", ss.id, "error", err)
		t, err = ss.open(ctx, true)
	}
	if err != nil {
		ss.service.ended(ss, nil)
		return nil, err
	}
	return t, nil
}

func (ss *session) removed() bool {
	ss.service.mu.Lock()
	defer ss.service.mu.Unlock()
	return ss.gone
}

// startError says that a shell did not come to its prompt.
type startError struct{ error }

func (e *startError) Unwrap() error { return e.error }

// open starts a shell and waits for its prompt.
func (ss *session) open(ctx context.Context, bare bool) (*terminal, error) {
	t, err := ss.launch(bare)
	if err != nil {
		return nil, err
	}
	ss.mu.Lock()
	ss.terminal = t
	ss.mu.Unlock()
	wait, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	err = t.ready(wait)
	os.Remove(t.path + ".rc")
	if err == nil {
		return t, nil
	}
	t.stop()
	if ctx.Err() != nil {
		return nil, canceled(ctx)
	}
	said := strings.TrimSpace(strings.Join(t.screen.Screen(), "\n"))
	if len(said) > 500 {
		said = strings.ToValidUTF8(said[:500], "") + "…"
	}
	return nil, &startError{op.Errorf(op.Unavailable, "the shell did not come to its prompt (%v); it printed: %q; look at ~/.bashrc", t.exit, said)}
}

func canceled(ctx context.Context) error {
	return op.Errorf(op.Canceled, "the request was given up before its end: %w", context.Cause(ctx))
}

// admit reserves room for the session's shell.
func (s *Service) admit(ss *session) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return stopping()
	case ss.gone:
		return op.Errorf(op.Conflict, "session %q was just closed; try again", ss.id)
	}
	living := 0
	for _, other := range s.sessions {
		if other.live && other != ss {
			living++
		}
	}
	if living >= s.MaxSessions && !s.evict() {
		return op.Errorf(op.Exhausted, "there are already %d shell sessions, which is the most; use one of them by its id (GET /v1/shell/sessions lists them), or end one with DELETE /v1/shell/sessions/{id}", living)
	}
	ss.live = true
	return nil
}

// evict makes room by ending the session that nobody asked for by name and that
// was unused for longest, if nothing runs in it. The lock is held.
func (s *Service) evict() bool {
	var oldest *session
	for _, ss := range s.sessions {
		if ss.live && ss.auto && ss.idle(false) && (oldest == nil || ss.idleSince().Before(oldest.idleSince())) {
			oldest = ss
		}
	}
	if oldest == nil {
		return false
	}
	s.remove(oldest)
	s.tasks.Go(oldest.stop)
	return true
}

// idle tells whether nobody uses the session: no command, no viewer, and, unless
// jobs do not count, no job in the background.
func (ss *session) idle(jobs bool) bool {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	t := ss.terminal
	if t == nil {
		return len(ss.starting) == 0
	}
	return t.current == nil && len(t.viewers) == 0 && (jobs || t.jobs == 0)
}

// remove forgets a session. The lock is held; the caller stops its shell.
func (s *Service) remove(ss *session) {
	delete(s.sessions, ss.id)
	ss.gone, ss.live = true, false
}

// stop ends the session's shell.
func (ss *session) stop() {
	ss.stopShell()
	ss.starting <- struct{}{} // whoever was starting a shell has it ready to be stopped
	defer func() { <-ss.starting }()
	ss.stopShell()
}

func (ss *session) stopShell() {
	ss.mu.Lock()
	t := ss.terminal
	ss.mu.Unlock()
	if t != nil {
		t.stop()
	}
}

// ended notes that a session has no shell any more.
func (s *Service) ended(ss *session, t *terminal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ss.mu.Lock()
	none := ss.terminal == nil
	never := none && ss.last == nil && t == nil
	ss.mu.Unlock()
	// While one is being started again, it is counted on.
	if none && (t == nil || len(ss.starting) == 0) {
		ss.live = false
	}
	if never && !ss.gone {
		s.remove(ss)
	}
}

// sweep ends sessions that were idle for too long and comes back when the next
// one may be.
func (s *Service) sweep() {
	defer s.tasks.Done()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	now := time.Now()
	next := now.Add(s.Idle)
	for _, ss := range s.sessions {
		due := ss.idleSince().Add(s.Idle)
		switch {
		case !ss.idle(true):
		case !due.After(now):
			s.remove(ss)
			s.tasks.Go(ss.stop)
			s.Log.Debug("shell session expired", "session", ss.id)
		case due.Before(next):
			next = due
		}
	}
	s.sweeper = nil
	if len(s.sessions) > 0 {
		s.tasks.Add(1)
		s.sweeper = time.AfterFunc(max(next.Sub(now), time.Millisecond), s.sweep)
	}
}

// cleanup ends the sessions that are chosen, all at once, and tells how many had a shell.
func (s *Service) cleanup(chosen func(*session) bool) (living int) {
	s.mu.Lock()
	var all []*session
	for _, ss := range s.sessions {
		if chosen(ss) {
			if ss.live {
				living++
			}
			all = append(all, ss)
			s.remove(ss)
		}
	}
	s.mu.Unlock()
	var wait sync.WaitGroup
	for _, ss := range all {
		wait.Go(ss.stop)
	}
	wait.Wait()
	return living
}

// startDir is where a new shell starts: as asked, or the nearest place that exists.
func (ss *session) startDir() string {
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

// directory checks the directory that a caller asks for; none is "".
func (s *Service) directory(path *string) (string, error) {
	if path == nil || *path == "" {
		return "", nil
	}
	dir, err := s.base.Resolve(*path)
	if err != nil {
		return "", op.Errorf(op.Invalid, "exec_dir: %w", err)
	}
	info, err := os.Stat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", op.Errorf(op.NotFound, "exec_dir %s does not exist; create it first, or leave it out", dir)
	case err != nil:
		return "", op.Errorf(op.Denied, "exec_dir %s cannot be used: %w", dir, err)
	case !info.IsDir():
		return "", op.Errorf(op.Invalid, "exec_dir %s is not a directory", dir)
	}
	return dir, nil
}

// physical is a directory without symbolic links, unless they are to be kept.
func physical(dir string, keep bool) string {
	if keep {
		return dir
	}
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		return real
	}
	return dir
}
