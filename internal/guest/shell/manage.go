package shell

import (
	"context"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/guest/internal/session"
)

// CreateSessionIn describes a session.
type CreateSessionIn struct {
	ID               string  `json:"id" nullable:"true" doc:"ID of the session. Default: a generated one"`
	ExecDir          *string `json:"exec_dir" doc:"Directory in which the shell starts. Default: the workspace"`
	NoChangeTimeout  *int    `json:"no_change_timeout" doc:"Seconds without output until shell_exec returns; 0: no limit. Default: 120"`
	PreserveSymlinks bool    `json:"preserve_symlinks" nullable:"true" default:"false" doc:"Do not resolve symbolic links in exec_dir"`
}

// Created is a session with a shell.
type Created struct {
	SessionID  string `json:"session_id" doc:"ID of the session"`
	WorkingDir string `json:"working_dir" doc:"Working directory of the session"`
}

// CreateSession finds or creates a session.
func (s *Service) CreateSession(ctx context.Context, in CreateSessionIn) (Created, error) {
	dir, err := session.Directory(s.base, "exec_dir", in.ExecDir)
	if err != nil {
		op.Hint(ctx, "%v; the session starts in the workspace", err)
	}
	ss, made, err := s.obtain(in.ID, true)
	if err != nil {
		return Created{}, err
	}
	ss.mu.Lock()
	if made && dir != "" {
		ss.start = resolveLinks(dir, in.PreserveSymlinks)
	}
	if in.NoChangeTimeout != nil {
		ss.noChange = op.Seconds(float64(max(0, *in.NoChangeTimeout)))
	}
	ss.mu.Unlock()
	if !made {
		op.Say(ctx, "Session %s exists already", ss.ID)
	}
	t, err := ss.ensureShell(ctx)
	if err != nil {
		return Created{}, err
	}
	ss.mu.Lock()
	defer ss.mu.Unlock()
	return Created{SessionID: ss.ID, WorkingDir: t.dir}, nil
}

// UpdateSessionIn has the settings to change.
type UpdateSessionIn struct {
	ID              string `json:"id" doc:"ID of the session"`
	NoChangeTimeout *int   `json:"no_change_timeout" doc:"Seconds without output until shell_exec returns; 0: no limit. Default: unchanged"`
}

// Settings of a session.
type Settings struct {
	SessionID       string `json:"session_id" doc:"ID of the session"`
	NoChangeTimeout int    `json:"no_change_timeout" doc:"Seconds without output until shell_exec returns; 0: no limit"`
}

// UpdateSession changes settings.
func (s *Service) UpdateSession(_ context.Context, in UpdateSessionIn) (Settings, error) {
	ss, err := s.find(in.ID)
	if err != nil {
		return Settings{}, err
	}
	ss.mu.Lock()
	defer ss.mu.Unlock()
	if in.NoChangeTimeout != nil {
		ss.noChange = op.Seconds(float64(max(0, *in.NoChangeTimeout)))
	}
	return Settings{SessionID: ss.ID, NoChangeTimeout: int(ss.noChange / time.Second)}, nil
}

// activeFor is how long a session counts as active after its last use.
const activeFor = 5 * time.Minute

// Stats counts sessions.
type Stats struct {
	TotalSessions  int     `json:"total_sessions" doc:"Number of live sessions"`
	ActiveSessions int     `json:"active_sessions" doc:"Number of sessions used in the last 5 minutes or with a running command"`
	IdleSessions   int     `json:"idle_sessions" doc:"Number of the other sessions"`
	MaxSessions    int     `json:"max_sessions" doc:"Maximum number of live sessions"`
	SessionTimeout int     `json:"session_timeout" doc:"Idle timeout of a session in seconds; 0: no limit"`
	UsageRatio     float64 `json:"usage_ratio" doc:"total_sessions divided by max_sessions"`
}

// Stats counts the sessions.
func (s *Service) Stats(context.Context, op.None) (Stats, error) {
	r := Stats{MaxSessions: s.MaxSessions, SessionTimeout: int(s.Idle / time.Second)}
	for _, ss := range s.liveSessions() {
		r.TotalSessions++
		if isActive(ss.state(), time.Since(ss.LastUsed())) {
			r.ActiveSessions++
		}
	}
	r.IdleSessions = r.TotalSessions - r.ActiveSessions
	r.UsageRatio = float64(r.TotalSessions) / float64(r.MaxSessions)
	return r, nil
}

func isActive(state string, unused time.Duration) bool { return state == running || unused < activeFor }

func (s *Service) liveSessions() []*Session {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []*Session
	for ss := range s.sessions.All() {
		if ss.Live() {
			all = append(all, ss)
		}
	}
	return all
}

// Info describes a session.
type Info struct {
	WorkingDir     string    `json:"working_dir" doc:"Working directory of the session"`
	CreatedAt      time.Time `json:"created_at"`
	LastUsedAt     time.Time `json:"last_used_at"`
	AgeSeconds     int       `json:"age_seconds" doc:"Seconds since the session was created"`
	Status         string    `json:"status" doc:"active while a command runs, otherwise idle"`
	CurrentCommand *string   `json:"current_command" doc:"The running command"`
}

// Sessions are the live sessions.
type Sessions struct {
	Sessions map[string]Info `json:"sessions" doc:"The live sessions by ID"`
}

// List lists the live sessions.
func (s *Service) List(context.Context, op.None) (Sessions, error) {
	list := Sessions{Sessions: map[string]Info{}}
	for _, ss := range s.liveSessions() {
		list.Sessions[ss.ID] = ss.info()
	}
	return list, nil
}

func (ss *Session) info() Info {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	// Clients in Python parse at most microseconds.
	wire := func(t time.Time) time.Time { return t.UTC().Truncate(time.Microsecond) }
	i := Info{
		WorkingDir: ss.start, CreatedAt: wire(ss.Created), LastUsedAt: wire(ss.LastUsed()),
		AgeSeconds: int(time.Since(ss.Created) / time.Second), Status: "idle",
	}
	if t := ss.terminal; t != nil {
		i.WorkingDir = t.dir
	}
	if c := ss.current(); c != nil {
		i.Status, i.CurrentCommand = "active", &c.text
	}
	return i
}

// Cleaned is the number of ended sessions.
type Cleaned struct {
	Cleaned int `json:"cleaned" doc:"Number of ended sessions"`
}

// CleanupAll ends all sessions.
func (s *Service) CleanupAll(ctx context.Context, _ op.None) (Cleaned, error) {
	n := s.cleanup(func(*Session) bool { return true })
	op.Say(ctx, "Sessions ended: %d", n)
	return Cleaned{n}, nil
}

// CleanupIn selects a session.
type CleanupIn struct {
	SessionID string `path:"session_id" doc:"ID of the session"`
}

// Cleanup ends one session.
func (s *Service) Cleanup(ctx context.Context, in CleanupIn) (Cleaned, error) {
	if _, err := s.find(in.SessionID); err != nil {
		return Cleaned{}, err
	}
	n := s.cleanup(func(ss *Session) bool { return ss.ID == in.SessionID })
	op.Say(ctx, "Session %s ended", in.SessionID)
	return Cleaned{n}, nil
}
