package node

import (
	"cmp"
	"context"
	"crypto/rand"
	"math"
	"strings"
	"time"
	"unicode"

	"github.com/cove-sandbox/cove/internal/op"
)

// longest is how long a session is kept unused unless somebody says less.
const longest = 24 * time.Hour

// session is a process that keeps variables. It is guarded by the service's lock,
// except what only the cell that has the turn touches.
type session struct {
	id      string
	wanted  string // version that was asked for; empty: the default one
	version string // version that it has, once that is known
	dir     string
	created time.Time
	used    time.Time
	idle    time.Duration
	running int // calls that run or wait for their turn
	removed bool
	p       *process // nil: started with the next call

	turn  chan struct{} // held by the call that runs
	moved bool          // dir is not the process's yet
	count int           // cells that ran in the process
	lost  string        // why the process before is gone; empty: there was none, or it was told
}

// SessionInfo tells about a session.
type SessionInfo struct {
	SessionID   string  `json:"session_id" doc:"Name of the session"`
	Cwd         string  `json:"cwd" doc:"Its working directory"`
	CreatedAt   float64 `json:"created_at" doc:"Seconds since 1970"`
	LastUsed    float64 `json:"last_used" doc:"Seconds since 1970"`
	MaxIdleTime int     `json:"max_idle_time" doc:"Seconds that it is kept unused"`
	AgeSeconds  int     `json:"age_seconds" doc:"Seconds since it was made"`
	State       string  `json:"state" enum:"idle,busy,stopped" doc:"Whether code runs in it; stopped: its process has ended, and the next call starts a new one"`
	Version     string  `json:"version" doc:"Version of Node.js; empty before its first start"`
}

func epoch(t time.Time) float64 { return float64(t.UnixMicro()) / 1e6 }

func (s *Service) info(ss *session) SessionInfo {
	i := SessionInfo{
		SessionID: ss.id, Cwd: ss.dir, CreatedAt: epoch(ss.created), LastUsed: epoch(ss.used),
		MaxIdleTime: int(math.Ceil(ss.idle.Seconds())), AgeSeconds: int(s.now().Sub(ss.created) / time.Second), State: "idle", Version: ss.version,
	}
	switch {
	case ss.running > 0:
		i.State = "busy"
	case ss.p == nil || ss.p.over():
		i.State = "stopped"
	}
	return i
}

// find returns a session by id and, if that is given, version. The lock is held.
func (s *Service) find(id string, version *string) (*session, error) {
	ss := s.sessions[id]
	if ss == nil || !ss.is(value(version)) {
		return nil, op.Errorf(op.NotFound, "there is no Node.js session %q: it was never made, was deleted, or expired; GET /v1/nodejs/sessions lists them", id)
	}
	return ss, nil
}

// is tells whether the session has a version.
func (ss *session) is(version string) bool {
	return version == "" || matches(cmp.Or(ss.version, ss.wanted), version)
}

// open finds or makes a session; an empty id asks for a new name. The lock is held.
func (s *Service) open(id, version string, idle time.Duration) (ss *session, made bool, err error) {
	if s.closed {
		return nil, false, errStopping()
	}
	if ss := s.sessions[id]; ss != nil {
		if !ss.is(version) {
			return nil, false, op.Errorf(op.Conflict, "session %q runs Node.js %s, not %s; leave version out, or use another session_id", id, cmp.Or(ss.version, ss.wanted, "of the default version"), version)
		}
		return ss, false, nil
	}
	bad := func(r rune) bool { return r == '/' || !unicode.IsPrint(r) }
	if len(id) > 128 || strings.ContainsFunc(id, bad) {
		return nil, false, op.Errorf(op.Invalid, "session_id must have at most 128 printable characters and no slash")
	}
	if len(s.sessions) >= s.MaxSessions {
		return nil, false, op.Errorf(op.Exhausted, "there are already %d Node.js sessions, which is the most; reuse one by its session_id, or delete one with DELETE /v1/nodejs/sessions/{session_id}", len(s.sessions))
	}
	if id == "" {
		id = strings.ToLower(rand.Text()[:16])
	}
	now := s.now()
	ss = &session{id: id, wanted: version, dir: s.Workspace, created: now, used: now, idle: s.capped(idle), turn: make(chan struct{}, 1)}
	s.sessions[id] = ss
	s.schedule()
	return ss, true, nil
}

// capped is how long a session may stay unused that asks for idle.
func (s *Service) capped(idle time.Duration) time.Duration {
	if s.Idle > 0 {
		return min(idle, s.Idle)
	}
	return idle
}

// move sets the directory of a session. The lock is held.
func (ss *session) move(dir string) {
	if dir != "" {
		ss.dir, ss.moved = dir, true
	}
}

// schedule looks at the sessions again when the first of them may have expired.
// The lock is held.
func (s *Service) schedule() {
	if s.sweeper != nil {
		s.sweeper.Stop()
	}
	if s.closed || len(s.sessions) == 0 {
		return
	}
	now, wait := s.now(), longest
	for _, ss := range s.sessions {
		if ss.running == 0 {
			wait = min(wait, ss.used.Add(ss.idle).Sub(now))
		}
	}
	s.sweeper = time.AfterFunc(max(wait, time.Millisecond), s.sweep)
}

// sweep ends the sessions that were unused for too long.
func (s *Service) sweep() {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	for _, ss := range s.sessions {
		if ss.running == 0 && !ss.used.Add(ss.idle).After(now) {
			s.remove(ss)
			s.Log.Debug("node session expired", "session", ss.id)
		}
	}
	s.schedule()
}

// remove forgets a session and ends its process. It returns what to wait for. The
// lock is held.
func (s *Service) remove(ss *session) <-chan struct{} {
	delete(s.sessions, ss.id)
	ss.removed = true
	p, done := ss.p, make(chan struct{})
	s.tasks.Go(func() {
		defer close(done)
		if p != nil {
			p.kill()
		}
	})
	return done
}

// withdraw takes back a session whose first start failed.
func (s *Service) withdraw(ss *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !ss.removed {
		s.remove(ss)
	}
}

// enter counts a call in a session, which keeps it from expiring.
func (s *Service) enter(ss *session) {
	ss.running++
	ss.used = s.now()
}

func (s *Service) leave(ss *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ss.running--
	ss.used = s.now()
	if ss.running == 0 && !ss.removed {
		s.schedule()
	}
}

// CreateSessionIn describes a new session.
type CreateSessionIn struct {
	SessionID   *string `json:"session_id" doc:"Name of the session; made up when missing"`
	Cwd         *string `json:"cwd" doc:"Its working directory; the workspace when missing"`
	MaxIdleTime int     `json:"max_idle_time" default:"86400" minimum:"60" maximum:"86400" nullable:"true" doc:"Seconds after which it is ended if it is not used"`
	Version     *string `query:"version" doc:"Version of Node.js, such as 20; the default one when missing"`
}

// CreateSessionOut tells about the session.
type CreateSessionOut struct {
	SessionID string       `json:"session_id" doc:"Name of the session"`
	Created   bool         `json:"created" doc:"False if it existed already"`
	Message   *string      `json:"message" doc:"What happened"`
	Session   *SessionInfo `json:"session" doc:"The session"`
}

// CreateSession makes a session and starts its process.
func (s *Service) CreateSession(ctx context.Context, in CreateSessionIn) (CreateSessionOut, error) {
	dir, err := s.directory(in.Cwd)
	if err != nil {
		return CreateSessionOut{}, err
	}
	s.mu.Lock()
	ss, made, err := s.open(value(in.SessionID), value(in.Version), time.Duration(in.MaxIdleTime)*time.Second)
	if err != nil {
		s.mu.Unlock()
		return CreateSessionOut{}, err
	}
	said := "The session exists already"
	if made {
		ss.move(dir)
		said = "The session was made"
	}
	s.enter(ss)
	s.mu.Unlock()
	defer s.leave(ss)
	if made {
		if err := s.start(ctx, ss); err != nil {
			s.withdraw(ss)
			return CreateSessionOut{}, err
		}
	}
	op.Say(ctx, "%s", said)
	s.mu.Lock()
	defer s.mu.Unlock()
	i := s.info(ss)
	if ss.running == 1 {
		i.State = "idle" // what runs is this call
	}
	return CreateSessionOut{SessionID: ss.id, Created: made, Message: &said, Session: &i}, nil
}

// start starts the process of a session.
func (s *Service) start(ctx context.Context, ss *session) error {
	select {
	case ss.turn <- struct{}{}:
		defer func() { <-ss.turn }()
	case <-ctx.Done(): // somebody else who knows its name was faster
		return op.Errorf(op.Canceled, "nobody waits for the session any more")
	}
	_, err := s.process(ctx, ss)
	return err
}

// ListSessionsIn says which sessions.
type ListSessionsIn struct {
	Version *string `query:"version" doc:"Only sessions of this version of Node.js"`
}

// ListSessionsOut are sessions by id.
type ListSessionsOut struct {
	Sessions map[string]SessionInfo `json:"sessions" default:"{}" doc:"The sessions by their ids"`
}

// ListSessions lists the sessions.
func (s *Service) ListSessions(_ context.Context, in ListSessionsIn) (ListSessionsOut, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := ListSessionsOut{Sessions: map[string]SessionInfo{}}
	for id, ss := range s.sessions {
		if ss.is(value(in.Version)) {
			out.Sessions[id] = s.info(ss)
		}
	}
	return out, nil
}

// SessionIn names a session.
type SessionIn struct {
	SessionID string  `path:"session_id" doc:"Name of the session"`
	Version   *string `query:"version" doc:"Version of Node.js that it must have"`
}

// SessionOut is one session.
type SessionOut struct {
	Session SessionInfo `json:"session" doc:"The session"`
}

// GetSession tells about a session.
func (s *Service) GetSession(_ context.Context, in SessionIn) (SessionOut, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ss, err := s.find(in.SessionID, in.Version)
	if err != nil {
		return SessionOut{}, err
	}
	return SessionOut{Session: s.info(ss)}, nil
}

// UpdateSessionIn is what to change.
type UpdateSessionIn struct {
	SessionID   string  `path:"session_id" doc:"Name of the session"`
	Version     *string `query:"version" doc:"Version of Node.js that it must have"`
	MaxIdleTime *int    `json:"max_idle_time" minimum:"60" maximum:"86400" doc:"Seconds after which it is ended if it is not used"`
	Cwd         *string `json:"cwd" doc:"Working directory from the next call on"`
}

// UpdateSessionOut is the session after the change.
type UpdateSessionOut struct {
	Updated bool        `json:"updated" doc:"Whether anything was changed"`
	Session SessionInfo `json:"session" doc:"The session"`
}

// UpdateSession changes a session.
func (s *Service) UpdateSession(_ context.Context, in UpdateSessionIn) (UpdateSessionOut, error) {
	dir, err := s.directory(in.Cwd)
	if err != nil {
		return UpdateSessionOut{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	ss, err := s.find(in.SessionID, in.Version)
	if err != nil {
		return UpdateSessionOut{}, err
	}
	ss.used = s.now()
	ss.move(dir)
	if in.MaxIdleTime != nil {
		ss.idle = s.capped(time.Duration(*in.MaxIdleTime) * time.Second)
	}
	s.schedule()
	return UpdateSessionOut{Updated: dir != "" || in.MaxIdleTime != nil, Session: s.info(ss)}, nil
}

// DeleteSessionOut tells that it is gone.
type DeleteSessionOut struct {
	Deleted bool `json:"deleted" doc:"Whether it was deleted"`
}

// DeleteSession ends a session. Its process is gone when it returns.
func (s *Service) DeleteSession(ctx context.Context, in SessionIn) (DeleteSessionOut, error) {
	s.mu.Lock()
	ss, err := s.find(in.SessionID, in.Version)
	if err != nil {
		s.mu.Unlock()
		return DeleteSessionOut{}, err
	}
	done := s.remove(ss)
	s.mu.Unlock()
	<-done
	op.Say(ctx, "The session was deleted")
	return DeleteSessionOut{Deleted: true}, nil
}
