package bash

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/cove-sandbox/cove/internal/op"
)

// session is what commands share. It is guarded by the service's lock.
type session struct {
	id      string
	auto    bool // made by a command that named none
	dir     string
	shot    *snapshot // nil: the runner's environment
	created time.Time
	used    time.Time
	count   int // commands ever started
	running int
	order   []*command // remembered, oldest first
}

// SessionInfo tells about a session.
type SessionInfo struct {
	SessionID      string    `json:"session_id" doc:"Name of the session"`
	Status         string    `json:"status" enum:"ready,closed" doc:"Whether it takes commands"`
	WorkingDir     string    `json:"working_dir" doc:"Directory in which its commands start"`
	CreatedAt      time.Time `json:"created_at"`
	LastUsedAt     time.Time `json:"last_used_at"`
	CurrentCommand *string   `json:"current_command" doc:"The command started last among those that run"`
	CommandCount   int       `json:"command_count" default:"0" doc:"How many commands were started in it"`
}

func (ss *session) info() SessionInfo {
	i := SessionInfo{
		SessionID: ss.id, Status: "ready", WorkingDir: ss.dir, CommandCount: ss.count,
		CreatedAt: wire(ss.created), LastUsedAt: wire(ss.used),
	}
	if c := ss.current(); c != nil {
		i.CurrentCommand = &c.text
	}
	return i
}

// wire is a time as replies carry it: clients in Python know microseconds.
func wire(t time.Time) time.Time { return t.UTC().Truncate(time.Microsecond) }

// current is the command started last among those that run.
func (ss *session) current() *command {
	for _, c := range slices.Backward(ss.order) {
		if !c.over() {
			return c
		}
	}
	return nil
}

func (ss *session) last() *command {
	if len(ss.order) == 0 {
		return nil
	}
	return ss.order[len(ss.order)-1]
}

// command finds one by id.
func (ss *session) command(id string) (*command, error) {
	for _, c := range ss.order {
		if c.id == id {
			return c, nil
		}
	}
	return nil, op.Errorf(op.NotFound, "session %q knows no command %q: it was started elsewhere, or it ended and was forgotten to make room for newer ones; run it again", ss.id, id)
}

// session finds one by id and marks it as used. The lock is held.
func (s *Service) session(id string) (*session, error) {
	ss := s.sessions[id]
	if ss == nil {
		return nil, op.Errorf(op.NotFound, "there is no bash session %q: it was never made, was closed, or expired; GET /v1/bash/sessions lists them", id)
	}
	ss.used = s.now()
	return ss, nil
}

// open makes a session; an empty id asks for a new name. The lock is held.
func (s *Service) open(id, dir string) (*session, error) {
	if s.closed {
		return nil, op.Errorf(op.Unavailable, "the sandbox is stopping; no command can be started")
	}
	if err := checkID(id); err != nil {
		return nil, err
	}
	if len(s.sessions) >= s.MaxSessions && !s.evict() {
		return nil, op.Errorf(op.Exhausted, "there are already %d bash sessions, which is the most; reuse one by its session_id, or close one with POST /v1/bash/sessions/{session_id}/close", len(s.sessions))
	}
	now := s.now()
	ss := &session{id: id, auto: id == "", dir: dir, created: now, used: now}
	if ss.auto {
		ss.id = newID()
	}
	if dir == "" {
		ss.dir = s.Workspace
	}
	s.sessions[ss.id] = ss
	if s.Idle > 0 && s.sweeper == nil {
		s.sweeper = time.AfterFunc(s.Idle, s.sweep)
	}
	return ss, nil
}

func newID() string { return strings.ToLower(rand.Text()[:16]) }

func checkID(id string) error {
	bad := func(r rune) bool { return r == '/' || !unicode.IsPrint(r) }
	if len(id) > 128 || strings.ContainsFunc(id, bad) {
		return op.Errorf(op.Invalid, "session_id must have at most 128 printable characters and no slash")
	}
	return nil
}

// evict makes room by forgetting the session that nobody asked for by name and
// that was unused for longest, if nothing runs in it.
func (s *Service) evict() bool {
	var oldest *session
	for _, ss := range s.sessions {
		if ss.auto && ss.running == 0 && (oldest == nil || ss.used.Before(oldest.used)) {
			oldest = ss
		}
	}
	if oldest == nil {
		return false
	}
	s.remove(oldest)
	return true
}

// sweep forgets sessions that were idle for too long and comes back when the
// next one may be.
func (s *Service) sweep() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	now := s.now()
	next := now.Add(s.Idle)
	for _, ss := range s.sessions {
		switch due := ss.used.Add(s.Idle); {
		case ss.running > 0:
		case !due.After(now):
			s.remove(ss)
			s.Log.Debug("bash session expired", "session", ss.id)
		case due.Before(next):
			next = due
		}
	}
	s.sweeper = nil
	if len(s.sessions) > 0 {
		s.sweeper = time.AfterFunc(next.Sub(now), s.sweep)
	}
}

// remove forgets a session and what its commands wrote. The lock is held.
func (s *Service) remove(ss *session) {
	delete(s.sessions, ss.id)
	for _, c := range ss.order {
		s.forget(c)
	}
	ss.order = nil
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

// CreateSessionIn describes a new session.
type CreateSessionIn struct {
	SessionID    *string `json:"session_id" doc:"Name of the session; made up when missing"`
	ExecDir      *string `json:"exec_dir" doc:"Directory in which its commands start; the workspace when missing"`
	SnapshotPath *string `json:"snapshot_path" doc:"Shell script that is sourced once, now; its environment, functions, aliases and shell options are those of the session's commands"`
}

// CreateSession makes a session, or brings an existing one up to date.
func (s *Service) CreateSession(ctx context.Context, in CreateSessionIn) (SessionInfo, error) {
	dir, err := s.directory(in.ExecDir)
	if err != nil {
		return SessionInfo{}, err
	}
	var shot *snapshot
	if in.SnapshotPath != nil && *in.SnapshotPath != "" {
		if shot, err = s.take(ctx, *in.SnapshotPath, cmp.Or(dir, s.Workspace)); err != nil {
			return SessionInfo{}, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	id := value(in.SessionID)
	ss := s.sessions[id]
	if ss == nil {
		if ss, err = s.open(id, dir); err != nil {
			return SessionInfo{}, err
		}
		ss.auto = false // whoever asked for it keeps it until it is closed or idle
	} else {
		op.Say(ctx, "Session %s exists already", id)
		ss.used = s.now()
		ss.dir = cmp.Or(dir, ss.dir)
	}
	if shot != nil {
		ss.shot = shot
	}
	return ss.info(), nil
}

func value(p *string) string {
	if p == nil {
		return ""
	}
	return *p
}

// None is the input of an operation that needs none.
type None struct{}

// Sessions lists them, oldest first.
func (s *Service) Sessions(context.Context, None) ([]SessionInfo, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]SessionInfo, 0, len(s.sessions))
	for _, ss := range s.sessions {
		all = append(all, ss.info())
	}
	slices.SortFunc(all, func(a, b SessionInfo) int {
		return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), cmp.Compare(a.SessionID, b.SessionID))
	})
	return all, nil
}

// CloseSessionIn names the session.
type CloseSessionIn struct {
	SessionID string `path:"session_id" doc:"Name of the session"`
}

// Closed tells what was ended.
type Closed struct {
	SessionID string `json:"session_id"`
	Status    string `json:"status" enum:"ready,closed"`
	Killed    int    `json:"killed" doc:"How many running commands were ended"`
}

// CloseSession ends what runs in a session and forgets it. What commands that
// ended before have left in the background stays.
func (s *Service) CloseSession(ctx context.Context, in CloseSessionIn) (Closed, error) {
	s.mu.Lock()
	ss, err := s.session(in.SessionID)
	if err != nil {
		s.mu.Unlock()
		return Closed{}, err
	}
	var running []*command
	for _, c := range ss.order {
		if !c.over() {
			running = append(running, c)
		}
	}
	s.remove(ss)
	s.mu.Unlock()
	stop(running)
	op.Say(ctx, "Session %s closed", ss.id)
	return Closed{SessionID: ss.id, Status: "closed", Killed: len(running)}, nil
}
