// Package session owns the table of a service's sessions: it creates and finds them, limits
// their number, evicts sessions with generated IDs, and ends sessions that are idle for too
// long or whose service closes.
//
// The service defines what a session is (a shell, a kernel, a directory) and how it ends.
// The table shares the service's lock, so that a service changes a session and the table
// atomically.
package session

import (
	"crypto/rand"
	"iter"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/cove-sandbox/cove/internal/api/op"
)

// Entry is the state of a session in its table. The session's type embeds it.
type Entry struct {
	ID      string
	Created time.Time

	// Guarded by the table's lock.
	Auto    bool // created without an id: may be evicted to make room
	idle    time.Duration
	calls   int
	live    bool
	removed bool
	ended   chan struct{} // nil until its removal; closed when it has ended

	mu   sync.Mutex // may be taken with any other lock held
	used time.Time
}

// Member is a pointer to a type that embeds Entry.
type Member interface {
	comparable
	entry() *Entry
}

func (e *Entry) entry() *Entry { return e }

// Touch records a use of the session. It requires no lock.
func (e *Entry) Touch() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.used = time.Now()
}

// LastUsed returns the time of the last use. It requires no lock.
func (e *Entry) LastUsed() time.Time {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.used
}

// Enter counts a call in the session. Until Leave, the session neither expires nor is
// evicted. The lock is held.
func (e *Entry) Enter() {
	e.calls++
	e.Touch()
}

// Leave ends a call that Enter has counted. The lock is held.
func (e *Entry) Leave() {
	e.calls--
	e.Touch()
}

// Calls returns the number of calls in the session. The lock is held.
func (e *Entry) Calls() int { return e.calls }

// Idle returns the idle timeout of the session; 0: none. The lock is held.
func (e *Entry) Idle() time.Duration { return e.idle }

// Live reports whether the session counts toward the limit. The lock is held.
func (e *Entry) Live() bool { return e.live }

// Removed reports whether the session was removed from the table. The lock is held.
func (e *Entry) Removed() bool { return e.removed }

// Config of a table.
type Config[S Member] struct {
	Name  string // name of the service in messages: "bash", "Node.js"
	Field string // request field with a session ID
	List  string // request that lists sessions
	End   string // request that ends a session

	Max  int           // maximum number of live sessions
	Idle time.Duration // idle timeout of new sessions; 0: none
	Log  *slog.Logger

	// NewID generates the ID of a session that is created without one; nil: random letters.
	NewID func() string
	// Busy reports whether a session without calls must not expire. It may be nil.
	Busy func(S) bool
	// Evictable reports whether an Auto session without calls may be evicted. Nil: none may.
	Evictable func(S) bool
	// OnEnd is called when a session is removed. The function that it returns, which may be
	// nil, ends the session in a goroutine, without the lock.
	OnEnd func(S) func()
}

// Table has the sessions of a service. All methods except Close and Wait require the lock.
type Table[S Member] struct {
	Config[S]
	lock sync.Locker

	closed   bool
	sessions map[string]S
	live     int
	timer    *time.Timer // nil: no session can expire
	due      time.Time   // when the timer fires
	tasks    sync.WaitGroup
}

// NewTable returns a table that is guarded by a lock of the service.
func NewTable[S Member](lock sync.Locker, c Config[S]) *Table[S] {
	if c.NewID == nil {
		c.NewID = NewID
	}
	return &Table[S]{Config: c, lock: lock, sessions: map[string]S{}}
}

// NewID returns an unguessable ID.
func NewID() string { return strings.ToLower(rand.Text()[:16]) }

// CheckID rejects IDs that are invalid in a path segment or a line of text.
func CheckID(field, id string) error {
	bad := func(r rune) bool { return r == '/' || !unicode.IsPrint(r) }
	if len(id) > 128 || strings.ContainsFunc(id, bad) {
		return op.Errorf(op.Invalid, "invalid %s: use at most 128 printable characters and no slash", field)
	}
	return nil
}

// ErrStopping returns the error of calls while the service closes.
func ErrStopping() error {
	return op.Errorf(op.Unavailable, "the sandbox is stopping; it accepts no new calls")
}

// Closed reports whether the table was closed.
func (t *Table[S]) Closed() bool { return t.closed }

// Len returns the number of sessions.
func (t *Table[S]) Len() int { return len(t.sessions) }

// All iterates over the sessions in undefined order. Sessions may be removed during the
// iteration.
func (t *Table[S]) All() iter.Seq[S] { return maps.Values(t.sessions) }

// Get returns the session with an ID.
func (t *Table[S]) Get(id string) (s S, ok bool) {
	s, ok = t.sessions[id]
	return s, ok
}

// Find returns the session with an ID, or an error if it does not exist.
func (t *Table[S]) Find(id string) (S, error) {
	s, ok := t.sessions[id]
	if !ok {
		return s, t.NotFound(id)
	}
	return s, nil
}

// NotFound returns the error of a request for a missing session.
func (t *Table[S]) NotFound(id string) error {
	return op.Errorf(op.NotFound, "Session not found: no %s session %q; it was never created, was closed, or "+
		"expired; %s lists the sessions", t.Name, id, t.List)
}

// Open returns the session with an ID. If there is none, it creates a live session. An empty
// ID creates a session with a generated ID.
func (t *Table[S]) Open(id string, create func() S) (s S, created bool, err error) {
	if s, ok := t.sessions[id]; ok || t.closed {
		return s, false, t.stopping()
	}
	if err := CheckID(t.Field, id); err != nil {
		return s, false, err
	}
	if err := t.makeRoom(); err != nil {
		return s, false, err
	}
	s = create()
	t.add(id, s)
	return s, true, t.Admit(s)
}

// Reserve is like Open, but the new session does not count toward the limit until it is
// admitted. At most Max such sessions are kept; the least recently used one is removed.
func (t *Table[S]) Reserve(id string, create func() S) (s S, created bool, err error) {
	if s, ok := t.sessions[id]; ok || t.closed {
		return s, false, t.stopping()
	}
	if err := CheckID(t.Field, id); err != nil {
		return s, false, err
	}
	if len(t.sessions)-t.live >= t.Max {
		t.removeOldest(func(s S) bool { return !s.entry().live && !t.busy(s) })
	}
	s = create()
	t.add(id, s)
	return s, true, nil
}

func (t *Table[S]) add(id string, s S) {
	e := s.entry()
	e.ID, e.Auto, e.Created, e.idle = id, id == "", time.Now(), t.Idle
	if id == "" {
		e.ID = t.NewID()
	}
	e.used = e.Created
	t.sessions[e.ID] = s
	t.scheduleExpiry(e)
}

// Admit makes a session live. If the limit is reached, it evicts another one.
func (t *Table[S]) Admit(s S) error {
	e := s.entry()
	switch {
	case t.closed:
		return ErrStopping()
	case e.removed:
		return op.Errorf(op.Conflict, "%s session %q was closed during the call; try again", t.Name, e.ID)
	case e.live:
		return nil
	}
	if err := t.makeRoom(); err != nil {
		return err
	}
	e.live = true
	t.live++
	return nil
}

// makeRoom ensures that one more session may be live.
func (t *Table[S]) makeRoom() error {
	if t.live < t.Max || t.removeOldest(t.evictable) {
		return nil
	}
	return op.Errorf(op.Exhausted,
		"%s session limit reached (%d); reuse a session by its %s (%s lists them), or end one with %s", t.Name, t.live, t.Field, t.List, t.End)
}

func (t *Table[S]) stopping() error {
	if t.closed {
		return ErrStopping()
	}
	return nil
}

// Release makes a session not live.
func (t *Table[S]) Release(s S) {
	if e := s.entry(); e.live {
		e.live = false
		t.live--
	}
}

func (t *Table[S]) evictable(s S) bool {
	e := s.entry()
	return e.live && e.Auto && e.calls == 0 && t.Evictable != nil && t.Evictable(s)
}

// removeOldest removes the least recently used matching session, if any.
func (t *Table[S]) removeOldest(matches func(S) bool) bool {
	var oldest S
	var used time.Time
	found := false
	for _, s := range t.sessions {
		if !matches(s) {
			continue
		}
		if at := s.entry().LastUsed(); !found || at.Before(used) {
			oldest, used, found = s, at, true
		}
	}
	if found {
		t.Remove(oldest)
	}
	return found
}

func (t *Table[S]) busy(s S) bool {
	return s.entry().calls > 0 || t.Busy != nil && t.Busy(s)
}

// Remove removes a session from the table and ends it. The channel is closed when it has
// ended.
func (t *Table[S]) Remove(s S) <-chan struct{} {
	e := s.entry()
	if e.removed {
		return e.ended
	}
	delete(t.sessions, e.ID)
	t.Release(s)
	e.removed, e.ended = true, make(chan struct{})
	var end func()
	if t.OnEnd != nil {
		end = t.OnEnd(s)
	}
	if end == nil {
		close(e.ended)
		return e.ended
	}
	t.tasks.Go(func() {
		defer close(e.ended)
		end()
	})
	return e.ended
}

// SetIdle sets the idle timeout of a session.
func (t *Table[S]) SetIdle(s S, idle time.Duration) {
	e := s.entry()
	e.idle = idle
	t.scheduleExpiry(e)
}

// scheduleExpiry ensures that a sweep runs when the session may expire.
func (t *Table[S]) scheduleExpiry(e *Entry) {
	if e.idle <= 0 || t.closed || e.removed {
		return
	}
	due := e.LastUsed().Add(e.idle)
	if t.timer != nil {
		if !due.Before(t.due) || !t.timer.Stop() { // a running sweep schedules the next one
			return
		}
		t.tasks.Done()
	}
	t.schedule(due)
}

func (t *Table[S]) schedule(due time.Time) {
	t.tasks.Add(1)
	t.due, t.timer = due, time.AfterFunc(time.Until(due), t.sweep)
}

// sweep ends idle sessions and schedules the next sweep. A busy session is checked again
// after its full idle timeout.
func (t *Table[S]) sweep() {
	defer t.tasks.Done()
	t.lock.Lock()
	defer t.lock.Unlock()
	t.timer = nil
	if t.closed {
		return
	}
	now := time.Now()
	var next time.Time
	for _, s := range t.sessions {
		e := s.entry()
		if e.idle <= 0 {
			continue
		}
		due := now.Add(e.idle)
		if !t.busy(s) {
			due = e.LastUsed().Add(e.idle)
		}
		if !due.After(now) {
			t.Remove(s)
			t.Log.Debug("session expired", "service", t.Name, "session", e.ID)
		} else if next.IsZero() || due.Before(next) {
			next = due
		}
	}
	if !next.IsZero() {
		t.schedule(next)
	}
}

// Shut ends all sessions. Later calls cannot open sessions.
func (t *Table[S]) Shut() {
	t.closed = true
	if t.timer != nil && t.timer.Stop() {
		t.tasks.Done()
	}
	t.timer = nil
	for _, s := range t.sessions {
		t.Remove(s)
	}
}

// Wait waits until all sessions have ended. It must be called after Shut, without the lock.
func (t *Table[S]) Wait() { t.tasks.Wait() }

// Close calls Shut and Wait. It takes the lock.
func (t *Table[S]) Close() {
	t.lock.Lock()
	t.Shut()
	t.lock.Unlock()
	t.Wait()
}
