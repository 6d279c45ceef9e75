package bash

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/guest/internal/session"
)

// Session is the state that commands share. It is guarded by the service's lock. Its calls
// are the running commands.
type Session struct {
	session.Entry
	dir   string
	shot  *snapshot  // nil: the runner's environment
	count int        // commands started so far
	order []*command // kept commands, oldest first
}

// SessionInfo describes a session.
type SessionInfo struct {
	SessionID      string    `json:"session_id" doc:"ID of the session"`
	Status         string    `json:"status" enum:"ready,closed" doc:"Whether the session accepts commands"`
	WorkingDir     string    `json:"working_dir" doc:"Working directory of its commands"`
	CreatedAt      time.Time `json:"created_at"`
	LastUsedAt     time.Time `json:"last_used_at"`
	CurrentCommand *string   `json:"current_command" doc:"The running command that was started last"`
	CommandCount   int       `json:"command_count" default:"0" doc:"Number of commands started in the session"`
}

func (ss *Session) info() SessionInfo {
	i := SessionInfo{
		SessionID: ss.ID, Status: "ready", WorkingDir: ss.dir, CommandCount: ss.count,
		CreatedAt: wireTime(ss.Created), LastUsedAt: wireTime(ss.LastUsed()),
	}
	if c := ss.current(); c != nil {
		i.CurrentCommand = &c.text
	}
	return i
}

// wireTime converts a time for replies. Python clients parse at most microseconds.
func wireTime(t time.Time) time.Time { return t.UTC().Truncate(time.Microsecond) }

// current returns the running command that was started last.
func (ss *Session) current() *command {
	for _, c := range slices.Backward(ss.order) {
		if !c.hasEnded() {
			return c
		}
	}
	return nil
}

func (ss *Session) last() *command {
	if len(ss.order) == 0 {
		return nil
	}
	return ss.order[len(ss.order)-1]
}

// command finds a command by ID.
func (ss *Session) command(id string) (*command, error) {
	for _, c := range ss.order {
		if c.id == id {
			return c, nil
		}
	}
	return nil, op.Errorf(op.NotFound,
		"no command %q in session %q: it belongs to another session, or was discarded after its end to make room; run it again", id, ss.ID)
}

// session finds a session by ID and marks it as used. The lock is held.
func (s *Service) session(id string) (*Session, error) {
	ss, err := s.sessions.Find(id)
	if err == nil {
		ss.Touch()
	}
	return ss, err
}

// open finds or creates a session. The lock is held.
func (s *Service) open(id, dir string) (ss *Session, created bool, err error) {
	return s.sessions.Open(id, func() *Session { return &Session{dir: cmp.Or(dir, s.Workspace)} })
}

// discardSession discards the output of a session's commands, and returns a function that
// ends the running ones. When the service closes, the function also ends background
// processes of ended commands. The lock is held.
func (s *Service) discardSession(ss *Session) func() {
	var all []*command
	for _, c := range ss.order {
		if s.sessions.Closed() || !c.hasEnded() {
			all = append(all, c)
		}
		s.discard(c)
	}
	ss.order = nil
	if len(all) == 0 {
		return nil
	}
	return func() { stop(all) }
}

// CreateSessionIn describes a new session.
type CreateSessionIn struct {
	SessionID    *string `json:"session_id" doc:"ID of the session. Default: a generated one"`
	ExecDir      *string `json:"exec_dir" doc:"Working directory of its commands. Default: the workspace"`
	SnapshotPath *string `json:"snapshot_path" doc:"Shell script to source once; commands get its environment, functions, aliases and options"`
}

// CreateSession creates a session, or applies the directory and snapshot to an existing one.
func (s *Service) CreateSession(ctx context.Context, in CreateSessionIn) (SessionInfo, error) {
	dir, err := session.Directory(s.base, "exec_dir", in.ExecDir)
	if err != nil {
		return SessionInfo{}, err
	}
	var shot *snapshot
	if in.SnapshotPath != nil && *in.SnapshotPath != "" {
		if shot, err = s.takeSnapshot(ctx, *in.SnapshotPath, cmp.Or(dir, s.Workspace)); err != nil {
			return SessionInfo{}, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	id := op.Value(in.SessionID)
	ss, created, err := s.open(id, dir)
	if err != nil {
		return SessionInfo{}, err
	}
	if created {
		ss.Auto = false // an explicitly created session is not evicted
	} else {
		op.Say(ctx, "Session %s exists already", id)
		ss.Touch()
		ss.dir = cmp.Or(dir, ss.dir)
	}
	if shot != nil {
		ss.shot = shot
	}
	return ss.info(), nil
}

// Sessions lists the sessions, oldest first.
func (s *Service) Sessions(context.Context, op.None) ([]SessionInfo, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]SessionInfo, 0, s.sessions.Len())
	for ss := range s.sessions.All() {
		all = append(all, ss.info())
	}
	slices.SortFunc(all, func(a, b SessionInfo) int {
		return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), cmp.Compare(a.SessionID, b.SessionID))
	})
	return all, nil
}

// CloseSessionIn selects a session.
type CloseSessionIn struct {
	SessionID string `path:"session_id" doc:"ID of the session"`
}

// Closed reports the end of a session.
type Closed struct {
	SessionID string `json:"session_id"`
	Status    string `json:"status" enum:"ready,closed"`
	Killed    int    `json:"killed" doc:"Number of running commands that were killed"`
}

// CloseSession ends the running commands of a session and removes it. Background processes
// of commands that have already ended continue.
func (s *Service) CloseSession(ctx context.Context, in CloseSessionIn) (Closed, error) {
	s.mu.Lock()
	ss, err := s.session(in.SessionID)
	if err != nil {
		s.mu.Unlock()
		return Closed{}, err
	}
	killed := ss.Calls()
	ended := s.sessions.Remove(ss)
	s.mu.Unlock()
	<-ended
	op.Say(ctx, "Session %s closed", ss.ID)
	return Closed{SessionID: ss.ID, Status: "closed", Killed: killed}, nil
}
