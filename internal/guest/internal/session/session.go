// Package session keeps the named sessions of a service: it creates and finds them,
// limits how many there are, evicts those that nobody asked to keep, and ends those
// that are unused for too long or whose service closes.
//
// What a session is (a shell, a kernel, a directory) and how it ends is the service's
// affair. The table shares the service's lock, so that a service changes a session and
// the table in one step.
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

// Entry is what a table knows of a session. The session's type embeds it.
type Entry struct {
	ID      string
	Created time.Time

	// Guarded by the table's lock.
	Auto    bool // created without an id: may be evicted to make room
	idle    time.Duration
	calls   int
	live    bool
	removed bool
	ended   chan struct{} // from its removal on: closed when it has ended

	mu   sync.Mutex // a leaf: taken with any other lock held
	used time.Time
}

// Member is a pointer to a type that embeds Entry.
type Member interface {
	comparable
	entry() *Entry
}

func (e *Entry) entry() *Entry { return e }

// Touch notes that the session is used now. It needs no lock.
func (e *Entry) Touch() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.used = time.Now()
}

// LastUsed is when the session was used last. It needs no lock.
func (e *Entry) LastUsed() time.Time {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.used
}

// Enter counts a call in the session: until it leaves, the session neither expires
// nor is evicted. The lock is held.
func (e *Entry) Enter() {
	e.calls++
	e.Touch()
}

// Leave ends what Enter began. The lock is held.
func (e *Entry) Leave() {
	e.calls--
	e.Touch()
}

// Calls is how many calls are in the session. The lock is held.
func (e *Entry) Calls() int { return e.calls }

// Idle is how long the session is kept unused; 0 is for ever. The lock is held.
func (e *Entry) Idle() time.Duration { return e.idle }

// Live tells whether the session counts towards the limit. The lock is held.
func (e *Entry) Live() bool { return e.live }

// Removed tells whether the session is no longer in the table. The lock is held.
func (e *Entry) Removed() bool { return e.removed }

// Config of a table.
type Config[S Member] struct {
	Name  string // of the service, in messages: "bash", "Node.js"
	Field string // the request field that holds an id
	List  string // the request that lists sessions
	End   string // the request that ends one

	Max  int           // how many sessions may be live
	Idle time.Duration // how long an unused session is kept; 0: for ever
	Log  *slog.Logger

	// NewID names a session that was created without an id; nil: random letters.
	NewID func() string
	// Busy tells that a session must not expire although no call is in it. It may be nil.
	Busy func(S) bool
	// Evictable tells that a session in which no call is may be ended to make room
	// if it is Auto. Nil: none may.
	Evictable func(S) bool
	// OnEnd is called when a session leaves the table. What it returns, which may be
	// nil, ends the session in a goroutine, without the lock.
	OnEnd func(S) func()
}

// Table holds the sessions of a service. All methods but Close and Wait expect that the
// lock is held.
type Table[S Member] struct {
	Config[S]
	lock sync.Locker

	closed   bool
	sessions map[string]S
	live     int
	timer    *time.Timer // nil: nothing can expire
	due      time.Time   // when it fires
	tasks    sync.WaitGroup
}

// NewTable returns a table that is guarded by its owner's lock.
func NewTable[S Member](lock sync.Locker, c Config[S]) *Table[S] {
	if c.NewID == nil {
		c.NewID = NewID
	}
	return &Table[S]{Config: c, lock: lock, sessions: map[string]S{}}
}

// NewID returns a name that nobody can guess.
func NewID() string { return strings.ToLower(rand.Text()[:16]) }

// CheckID refuses ids that would not fit into a path or a line of text.
func CheckID(field, id string) error {
	bad := func(r rune) bool { return r == '/' || !unicode.IsPrint(r) }
	if len(id) > 128 || strings.ContainsFunc(id, bad) {
		return op.Errorf(op.Invalid, "invalid %s: use at most 128 printable characters and no slash", field)
	}
	return nil
}

// ErrStopping is the error of a call that comes when its service is closing.
func ErrStopping() error {
	return op.Errorf(op.Unavailable, "the sandbox is stopping; nothing new can be started")
}

// Closed tells whether the table was closed.
func (t *Table[S]) Closed() bool { return t.closed }

// Len is how many sessions there are.
func (t *Table[S]) Len() int { return len(t.sessions) }

// All iterates over the sessions in no particular order. Sessions may be removed
// meanwhile.
func (t *Table[S]) All() iter.Seq[S] { return maps.Values(t.sessions) }

// Get returns the session with this id.
func (t *Table[S]) Get(id string) (s S, ok bool) {
	s, ok = t.sessions[id]
	return s, ok
}

// Find is Get for a caller who needs the session: a missing one is an error.
func (t *Table[S]) Find(id string) (S, error) {
	s, ok := t.sessions[id]
	if !ok {
		return s, t.NotFound(id)
	}
	return s, nil
}

// NotFound is the error of a request for a session that does not exist.
func (t *Table[S]) NotFound(id string) error {
	return op.Errorf(op.NotFound, "Session not found: no %s session %q; it was never created, was closed, or "+
		"expired; %s lists the sessions", t.Name, id, t.List)
}

// Open returns the session with this id. If there is none, it creates one that is
// live; an empty id asks for a new name.
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

// Reserve is Open for a session that does not count towards the limit before it is
// admitted. As many of them as may be live are kept; the one unused for longest goes.
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
	t.wake(e)
}

// Admit makes a session live, if need be in place of one that may be evicted.
func (t *Table[S]) Admit(s S) error {
	e := s.entry()
	switch {
	case t.closed:
		return ErrStopping()
	case e.removed:
		return op.Errorf(op.Conflict, "%s session %q was closed just now; try again", t.Name, e.ID)
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

// makeRoom makes sure that one more session may be live.
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

// Release takes a session out of those that count towards the limit.
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

// removeOldest removes the session unused for longest among those chosen, if any is.
func (t *Table[S]) removeOldest(chosen func(S) bool) bool {
	var oldest S
	var used time.Time
	found := false
	for _, s := range t.sessions {
		if !chosen(s) {
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

// Remove takes a session out of the table and ends it. The channel is closed when it
// has ended.
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

// SetIdle changes how long a session is kept unused.
func (t *Table[S]) SetIdle(s S, idle time.Duration) {
	e := s.entry()
	e.idle = idle
	t.wake(e)
}

// wake sees to it that the session is looked at when it may expire.
func (t *Table[S]) wake(e *Entry) {
	if e.idle <= 0 || t.closed || e.removed {
		return
	}
	due := e.LastUsed().Add(e.idle)
	if t.timer != nil {
		if !due.Before(t.due) || !t.timer.Stop() { // a sweep that has begun schedules the next
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

// sweep ends the sessions that were unused for too long and comes back when the next
// one may be. Those in use are looked at again no sooner than they can be due.
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

// Shut ends all sessions. Nothing can be opened from then on.
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

// Wait returns when all sessions have ended. It is called after Shut, without the lock.
func (t *Table[S]) Wait() { t.tasks.Wait() }

// Close is Shut and Wait. It takes the lock.
func (t *Table[S]) Close() {
	t.lock.Lock()
	t.Shut()
	t.lock.Unlock()
	t.Wait()
}
