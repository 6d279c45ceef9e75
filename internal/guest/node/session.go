package node

import (
	"cmp"
	"context"
	"math"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/guest/internal/session"
)

// maxIdle is the default idle timeout of a session.
const maxIdle = 24 * time.Hour

// Session is a process that keeps variables. It is guarded by the service's lock,
// except what only the call with the turn uses.
type Session struct {
	session.Entry
	wanted  string // requested version; empty: the default one
	version string // actual version; empty: not known yet
	dir     string
	p       *process // nil: started with the next call

	turn  chan struct{} // held by the call that runs
	moved bool          // dir is not the process's yet
	count int           // cells that ran in the process
	lost  string        // why the previous process ended; empty: there was none, or it was reported
}

// SessionInfo describes a session.
type SessionInfo struct {
	SessionID   string  `json:"session_id" doc:"ID of the session"`
	Cwd         string  `json:"cwd" doc:"Working directory of the session"`
	CreatedAt   float64 `json:"created_at" doc:"Unix time in milliseconds"`
	LastUsed    float64 `json:"last_used" doc:"Unix time in milliseconds"`
	MaxIdleTime int     `json:"max_idle_time" doc:"Idle timeout in milliseconds"`
	AgeSeconds  int     `json:"age_seconds" doc:"Seconds since the session was last used"`
	State       string  `json:"state" enum:"IDLE,EXECUTING" doc:"EXECUTING while code runs"`
	Alive       bool    `json:"alive" doc:"Whether the process runs; otherwise the next call starts a new one"`
	Version     string  `json:"version" doc:"Version of Node.js; empty before the first start"`
}

// States of a session.
const (
	Idle      = "IDLE"
	Executing = "EXECUTING"
)

func milliseconds(t time.Time) float64 { return float64(t.UnixMicro()) / 1e3 }

func (ss *Session) info() SessionInfo {
	i := SessionInfo{
		SessionID: ss.ID, Cwd: ss.dir, CreatedAt: milliseconds(ss.Created), LastUsed: milliseconds(ss.LastUsed()),
		MaxIdleTime: int(math.Ceil(ss.Idle().Seconds() * 1000)),
		AgeSeconds:  int(time.Since(ss.LastUsed()) / time.Second), State: Idle, Version: ss.version,
		Alive: ss.p != nil && !ss.p.hasExited(),
	}
	if ss.Calls() > 0 {
		i.State = Executing
	}
	return i
}

// find returns a session by ID and, if version is set, by version. The lock is held.
func (s *Service) find(id string, version *string) (*Session, error) {
	ss, ok := s.sessions.Get(id)
	if ok && ss.hasVersion(op.Value(version)) {
		return ss, nil
	}
	return nil, s.sessions.NotFound(id)
}

// hasVersion reports whether the session has a version.
func (ss *Session) hasVersion(version string) bool {
	return version == "" || matches(cmp.Or(ss.version, ss.wanted), version)
}

// open finds or creates a session. An empty ID creates one with a generated ID. The lock is
// held.
func (s *Service) open(id, version string, idle time.Duration) (ss *Session, created bool, err error) {
	ss, created, err = s.sessions.Open(id, func() *Session {
		return &Session{wanted: version, dir: s.Workspace, turn: make(chan struct{}, 1)}
	})
	switch {
	case err != nil:
		return nil, false, err
	case created:
		s.sessions.SetIdle(ss, s.capIdle(idle))
	case !ss.hasVersion(version):
		return nil, false, op.Errorf(op.Conflict,
			"session %q runs Node.js %s, not %s; omit version, or use another session_id", id,
			cmp.Or(ss.version, ss.wanted, "of the default version"), version)
	}
	return ss, created, nil
}

// capIdle applies the upper limit to an idle timeout.
func (s *Service) capIdle(idle time.Duration) time.Duration {
	if s.Idle > 0 {
		return min(idle, s.Idle)
	}
	return idle
}

// move sets the directory of a session. The lock is held.
func (ss *Session) move(dir string) {
	if dir != "" {
		ss.dir, ss.moved = dir, true
	}
}

// killProcess returns a function that ends the process of a removed session. The lock is
// held.
func killProcess(ss *Session) func() {
	if ss.p == nil {
		return nil
	}
	return ss.p.kill
}

// remove removes a session without waiting for its end.
func (s *Service) remove(ss *Session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sessions.Remove(ss)
}

func (s *Service) leave(ss *Session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ss.Leave()
}

// CreateSessionIn describes a new session.
type CreateSessionIn struct {
	SessionID   *string `json:"session_id" doc:"ID of the session. Default: a generated one"`
	Cwd         *string `json:"cwd" doc:"Working directory of the session. Default: the workspace"`
	MaxIdleTime int     `json:"max_idle_time" default:"86400" minimum:"60" maximum:"86400" nullable:"true" doc:"Idle timeout in seconds"`
	Version     *string `query:"version" doc:"Version of Node.js, such as 20. Default: the default version"`
}

// CreateSessionOut describes the session.
type CreateSessionOut struct {
	SessionID string       `json:"session_id" doc:"ID of the session"`
	Created   bool         `json:"created" doc:"False if the session already existed"`
	Message   *string      `json:"message" doc:"What happened"`
	Session   *SessionInfo `json:"session" doc:"The session"`
}

// CreateSession creates a session and starts its process.
func (s *Service) CreateSession(ctx context.Context, in CreateSessionIn) (CreateSessionOut, error) {
	dir, err := session.Directory(s.base, "cwd", in.Cwd)
	if err != nil {
		return CreateSessionOut{}, err
	}
	s.mu.Lock()
	ss, made, err := s.open(op.Value(in.SessionID), op.Value(in.Version), time.Duration(in.MaxIdleTime)*time.Second)
	if err != nil {
		s.mu.Unlock()
		return CreateSessionOut{}, err
	}
	said := "The session already exists"
	if made {
		ss.move(dir)
		said = "The session was created"
	}
	ss.Enter()
	s.mu.Unlock()
	defer s.leave(ss)
	if made {
		if err := s.start(ctx, ss); err != nil {
			s.remove(ss)
			return CreateSessionOut{}, err
		}
	}
	op.Say(ctx, "%s", said)
	s.mu.Lock()
	defer s.mu.Unlock()
	i := ss.info()
	if ss.Calls() == 1 {
		i.State = Idle // the running call is this one
	}
	return CreateSessionOut{SessionID: ss.ID, Created: made, Message: &said, Session: &i}, nil
}

// start starts the process of a session.
func (s *Service) start(ctx context.Context, ss *Session) error {
	select {
	case ss.turn <- struct{}{}:
		defer func() { <-ss.turn }()
	case <-ctx.Done(): // another caller with the same ID has the turn
		return op.Errorf(op.Canceled, "create session: canceled")
	}
	_, err := s.ensureProcess(ctx, ss)
	return err
}

// ListSessionsIn selects sessions.
type ListSessionsIn struct {
	Version *string `query:"version" doc:"List only sessions of this version of Node.js"`
}

// ListSessionsOut are sessions by ID.
type ListSessionsOut struct {
	Sessions map[string]SessionInfo `json:"sessions" default:"{}" doc:"The sessions by ID"`
}

// ListSessions lists the sessions.
func (s *Service) ListSessions(_ context.Context, in ListSessionsIn) (ListSessionsOut, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := ListSessionsOut{Sessions: map[string]SessionInfo{}}
	for ss := range s.sessions.All() {
		if ss.hasVersion(op.Value(in.Version)) {
			out.Sessions[ss.ID] = ss.info()
		}
	}
	return out, nil
}

// SessionIn selects a session.
type SessionIn struct {
	SessionID string  `path:"session_id" doc:"ID of the session"`
	Version   *string `query:"version" doc:"Version of Node.js that the session must have"`
}

// SessionOut is one session.
type SessionOut struct {
	Session SessionInfo `json:"session" doc:"The session"`
}

// GetSession describes a session.
func (s *Service) GetSession(_ context.Context, in SessionIn) (SessionOut, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ss, err := s.find(in.SessionID, in.Version)
	if err != nil {
		return SessionOut{}, err
	}
	return SessionOut{Session: ss.info()}, nil
}

// UpdateSessionIn has the settings to change.
type UpdateSessionIn struct {
	SessionID   string  `path:"session_id" doc:"ID of the session"`
	Version     *string `query:"version" doc:"Version of Node.js that the session must have"`
	MaxIdleTime *int    `json:"max_idle_time" minimum:"60" maximum:"86400" doc:"Idle timeout in seconds"`
	Cwd         *string `json:"cwd" doc:"New working directory, from the next call on"`
}

// UpdateSessionOut is the session after the change.
type UpdateSessionOut struct {
	Updated bool        `json:"updated" doc:"Whether anything was changed"`
	Session SessionInfo `json:"session" doc:"The session"`
}

// UpdateSession changes a session.
func (s *Service) UpdateSession(_ context.Context, in UpdateSessionIn) (UpdateSessionOut, error) {
	dir, err := session.Directory(s.base, "cwd", in.Cwd)
	if err != nil {
		return UpdateSessionOut{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	ss, err := s.find(in.SessionID, in.Version)
	if err != nil {
		return UpdateSessionOut{}, err
	}
	ss.Touch()
	ss.move(dir)
	if in.MaxIdleTime != nil {
		s.sessions.SetIdle(ss, s.capIdle(time.Duration(*in.MaxIdleTime)*time.Second))
	}
	return UpdateSessionOut{Updated: dir != "" || in.MaxIdleTime != nil, Session: ss.info()}, nil
}

// DeleteSessionOut confirms the deletion.
type DeleteSessionOut struct {
	Deleted bool `json:"deleted" doc:"Whether it was deleted"`
}

// DeleteSession ends a session and waits until its process has exited.
func (s *Service) DeleteSession(ctx context.Context, in SessionIn) (DeleteSessionOut, error) {
	s.mu.Lock()
	ss, err := s.find(in.SessionID, in.Version)
	if err != nil {
		s.mu.Unlock()
		return DeleteSessionOut{}, err
	}
	done := s.sessions.Remove(ss)
	s.mu.Unlock()
	<-done
	op.Say(ctx, "Deleted the session")
	return DeleteSessionOut{Deleted: true}, nil
}
