package shell

import (
	"context"
	"time"

	"github.com/cove-sandbox/cove/internal/op"
)

// CreateSessionIn describes a session.
type CreateSessionIn struct {
	ID               string  `json:"id" nullable:"true" doc:"Name of the session; made up when missing"`
	ExecDir          *string `json:"exec_dir" doc:"Directory in which it starts; the workspace when missing"`
	NoChangeTimeout  *int    `json:"no_change_timeout" doc:"Seconds without output after which shell_exec answers, 0 for never; 120 when missing"`
	PreserveSymlinks bool    `json:"preserve_symlinks" nullable:"true" default:"false" doc:"Keep symbolic links in exec_dir instead of following them"`
}

// Created is a session that can be used.
type Created struct {
	SessionID  string `json:"session_id" doc:"Name of the session"`
	WorkingDir string `json:"working_dir" doc:"Its directory"`
}

// CreateSession makes a session, or finds it.
func (s *Service) CreateSession(ctx context.Context, in CreateSessionIn) (Created, error) {
	dir, err := s.directory(in.ExecDir)
	if err != nil {
		op.Hint(ctx, "%v; the session starts in the workspace", err)
	}
	ss, made, err := s.obtain(in.ID, true)
	if err != nil {
		return Created{}, err
	}
	ss.mu.Lock()
	if made && dir != "" {
		ss.start = physical(dir, in.PreserveSymlinks)
	}
	if in.NoChangeTimeout != nil {
		ss.noChange = seconds(float64(max(0, *in.NoChangeTimeout)))
	}
	ss.mu.Unlock()
	if !made {
		op.Say(ctx, "Session %s exists already", ss.id)
	}
	t, err := ss.shell(ctx)
	if err != nil {
		return Created{}, err
	}
	ss.mu.Lock()
	defer ss.mu.Unlock()
	return Created{SessionID: ss.id, WorkingDir: t.dir}, nil
}

// UpdateSessionIn is what to change.
type UpdateSessionIn struct {
	ID              string `json:"id" doc:"The session"`
	NoChangeTimeout *int   `json:"no_change_timeout" doc:"Seconds without output after which shell_exec answers, 0 for never; unchanged when missing"`
}

// Settings of a session.
type Settings struct {
	SessionID       string `json:"session_id" doc:"The session"`
	NoChangeTimeout int    `json:"no_change_timeout" doc:"Seconds without output after which shell_exec answers, 0 for never"`
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
		ss.noChange = seconds(float64(max(0, *in.NoChangeTimeout)))
	}
	return Settings{SessionID: ss.id, NoChangeTimeout: int(ss.noChange / time.Second)}, nil
}

// None is the input of an operation that needs none.
type None struct{}

// Stats counts sessions.
type Stats struct {
	TotalSessions  int     `json:"total_sessions" doc:"Living sessions"`
	ActiveSessions int     `json:"active_sessions" doc:"Those in which a command runs"`
	IdleSessions   int     `json:"idle_sessions" doc:"Those in which none runs"`
	MaxSessions    int     `json:"max_sessions" doc:"The most that may live at a time"`
	SessionTimeout int     `json:"session_timeout" doc:"Seconds after which an unused session is ended; 0 for never"`
	UsageRatio     float64 `json:"usage_ratio" doc:"Living sessions in relation to the most"`
}

// Stats counts the sessions.
func (s *Service) Stats(context.Context, None) (Stats, error) {
	r := Stats{MaxSessions: s.MaxSessions, SessionTimeout: int(s.Idle / time.Second)}
	for _, ss := range s.living() {
		r.TotalSessions++
		if ss.state() == running {
			r.ActiveSessions++
		}
	}
	r.IdleSessions = r.TotalSessions - r.ActiveSessions
	r.UsageRatio = float64(r.TotalSessions) / float64(r.MaxSessions)
	return r, nil
}

func (s *Service) living() []*session {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []*session
	for _, ss := range s.sessions {
		if ss.live {
			all = append(all, ss)
		}
	}
	return all
}

// Info tells about a session.
type Info struct {
	WorkingDir     string    `json:"working_dir" doc:"Its directory"`
	CreatedAt      time.Time `json:"created_at"`
	LastUsedAt     time.Time `json:"last_used_at"`
	AgeSeconds     int       `json:"age_seconds" doc:"Seconds since it was made"`
	Status         string    `json:"status" doc:"active while a command runs, else idle"`
	CurrentCommand *string   `json:"current_command" doc:"The command that runs"`
}

// Sessions are the living ones.
type Sessions struct {
	Sessions map[string]Info `json:"sessions" doc:"The living sessions by id"`
}

// List lists the living sessions.
func (s *Service) List(context.Context, None) (Sessions, error) {
	list := Sessions{Sessions: map[string]Info{}}
	for _, ss := range s.living() {
		list.Sessions[ss.id] = ss.info()
	}
	return list, nil
}

func (ss *session) info() Info {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	// Clients in Python know microseconds.
	wire := func(t time.Time) time.Time { return t.UTC().Truncate(time.Microsecond) }
	i := Info{
		WorkingDir: ss.start, CreatedAt: wire(ss.created), LastUsedAt: wire(ss.used),
		AgeSeconds: int(time.Since(ss.created) / time.Second), Status: "idle",
	}
	if t := ss.terminal; t != nil {
		i.WorkingDir = t.dir
	}
	if c := ss.current(); c != nil {
		i.Status, i.CurrentCommand = "active", &c.text
	}
	return i
}

// Cleaned tells how many sessions were ended.
type Cleaned struct {
	Cleaned int `json:"cleaned" doc:"How many sessions were ended"`
}

// CleanupAll ends all sessions.
func (s *Service) CleanupAll(ctx context.Context, _ None) (Cleaned, error) {
	n := s.cleanup(func(*session) bool { return true })
	op.Say(ctx, "Sessions ended: %d", n)
	return Cleaned{n}, nil
}

// CleanupIn names the session.
type CleanupIn struct {
	SessionID string `path:"session_id" doc:"Session to end"`
}

// Cleanup ends one session.
func (s *Service) Cleanup(ctx context.Context, in CleanupIn) (Cleaned, error) {
	if _, err := s.find(in.SessionID); err != nil {
		return Cleaned{}, err
	}
	n := s.cleanup(func(ss *session) bool { return ss.id == in.SessionID })
	op.Say(ctx, "Session %s ended", in.SessionID)
	return Cleaned{n}, nil
}
