package jupyter

import (
	"context"
	"crypto/rand"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/cove-sandbox/cove/internal/kernel"
	"github.com/cove-sandbox/cove/internal/op"
)

// session is a kernel that keeps variables. It is guarded by the service's lock,
// except what only the call that has the turn touches.
type session struct {
	id      string
	spec    kernel.Spec
	created time.Time
	used    time.Time
	running int // calls that run or wait for their turn
	removed bool
	k       *kernel.Kernel // nil: started with the next call
	busy    bool           // a cell runs in k

	turn chan struct{} // held by the call that runs
	dir  string        // that was asked for last
	lost string        // why the kernel before is gone; empty: there was none, or it was told
}

// SessionInfo tells about a session.
type SessionInfo struct {
	KernelName string  `json:"kernel_name" doc:"Its kernel"`
	LastUsed   float64 `json:"last_used" doc:"Seconds since 1970"`
	AgeSeconds int     `json:"age_seconds" doc:"Seconds since it was made"`
	State      string  `json:"state" enum:"idle,busy,stopped" doc:"Whether a cell runs in it; stopped: its kernel has ended, and the next call starts a new one"`
}

func (s *Service) info(ss *session) SessionInfo {
	i := SessionInfo{
		KernelName: ss.spec.Name, LastUsed: float64(ss.used.UnixMicro()) / 1e6,
		AgeSeconds: int(s.now().Sub(ss.created) / time.Second), State: "idle",
	}
	switch {
	case ss.running > 0:
		i.State = "busy"
	case ss.k == nil || ss.k.Err() != nil:
		i.State = "stopped"
	}
	return i
}

// enter finds or makes a session and counts a call in it, which keeps it from
// expiring. An empty id asks for a new name.
func (s *Service) enter(ctx context.Context, id, name, dir string) (ss *session, made bool, err error) {
	var spec kernel.Spec
	s.mu.Lock()
	known := s.sessions[id] != nil
	s.mu.Unlock()
	if !known || name != "" {
		if spec, err = s.kernelSpec(ctx, name); err != nil {
			return nil, false, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, false, errStopping()
	}
	now := s.now()
	ss = s.sessions[id]
	switch bad := func(r rune) bool { return r == '/' || !unicode.IsPrint(r) }; {
	case ss != nil && name != "" && ss.spec.Name != spec.Name:
		return nil, false, op.Errorf(op.Conflict, "session %q has the kernel %s, not %s; leave kernel_name out, or use another session_id", id, ss.spec.Name, spec.Name)
	case ss != nil:
	case known && name == "":
		return nil, false, op.Errorf(op.Conflict, "session %q was deleted just now; call again to make a new one", id)
	case len(id) > 128 || strings.ContainsFunc(id, bad):
		return nil, false, op.Errorf(op.Invalid, "session_id must have at most 128 printable characters and no slash")
	case len(s.sessions) >= s.MaxSessions:
		return nil, false, op.Errorf(op.Exhausted, "there are already %d Jupyter sessions, which is the most; reuse one by its session_id, or delete one with DELETE /v1/jupyter/sessions/{session_id}", len(s.sessions))
	default:
		if id == "" {
			id = strings.ToLower(rand.Text()[:16])
		}
		if dir == "" {
			dir = s.Workspace
		}
		ss, made = &session{id: id, spec: spec, dir: dir, created: now, turn: make(chan struct{}, 1)}, true
		s.sessions[id] = ss
	}
	ss.running++
	ss.used, s.used = now, now
	s.schedule()
	return ss, made, nil
}

func (s *Service) leave(ss *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ss.running--
	ss.used = s.now()
	if ss.running == 0 {
		s.schedule()
	}
}

// schedule looks again when the first session, or the kernels that wait for one,
// may have been unused for too long. The lock is held.
func (s *Service) schedule() {
	if s.sweeper != nil {
		s.sweeper.Stop()
	}
	if s.closed || s.Idle <= 0 {
		return
	}
	now, wait := s.now(), s.Idle
	for _, ss := range s.sessions {
		if ss.running == 0 {
			wait = min(wait, ss.used.Add(s.Idle).Sub(now))
		}
	}
	s.sweeper = time.AfterFunc(max(wait, time.Millisecond), s.sweep)
}

// sweep ends what was unused for too long.
func (s *Service) sweep() {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	for _, ss := range s.sessions {
		if ss.running == 0 && !ss.used.Add(s.Idle).After(now) {
			s.remove(ss)
			s.Log.Debug("jupyter session expired", "session", ss.id)
		}
	}
	if !s.used.Add(s.Idle).After(now) {
		s.pool.drop()
		if len(s.sessions) == 0 {
			return // the next call schedules
		}
	}
	s.schedule()
}

// remove forgets a session and ends its kernel. It returns what to wait for. The
// lock is held.
func (s *Service) remove(ss *session) <-chan struct{} {
	delete(s.sessions, ss.id)
	ss.removed = true
	k, busy := ss.k, ss.busy
	done := make(chan struct{})
	s.tasks.Go(func() {
		defer close(done)
		switch {
		case k == nil:
		case busy:
			k.Close()
		default:
			// So that what the code wants to do at its end is done.
			ctx, cancel := context.WithTimeout(context.Background(), farewell)
			defer cancel()
			k.Shutdown(ctx)
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

// ListSessionsOut are sessions by id.
type ListSessionsOut struct {
	Sessions map[string]SessionInfo `json:"sessions" doc:"The sessions by their ids"`
}

// ListSessions lists the sessions.
func (s *Service) ListSessions(context.Context, None) (ListSessionsOut, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := ListSessionsOut{Sessions: map[string]SessionInfo{}}
	for id, ss := range s.sessions {
		out.Sessions[id] = s.info(ss)
	}
	return out, nil
}

// Deleted names the sessions that are gone.
type Deleted struct {
	Deleted []string `json:"deleted" doc:"The sessions that were ended"`
}

// DeleteSessions ends all sessions. Their kernels are gone when it returns.
func (s *Service) DeleteSessions(ctx context.Context, _ None) (Deleted, error) {
	s.mu.Lock()
	var out Deleted
	var wait []<-chan struct{}
	for id, ss := range s.sessions {
		out.Deleted = append(out.Deleted, id)
		wait = append(wait, s.remove(ss))
	}
	s.mu.Unlock()
	for _, done := range wait {
		<-done
	}
	slices.Sort(out.Deleted)
	op.Say(ctx, "%d sessions were deleted", len(out.Deleted))
	return out, nil
}

// SessionIn names a session.
type SessionIn struct {
	SessionID string `path:"session_id" doc:"Name of the session"`
}

// DeleteSession ends a session. Its kernel is gone when it returns.
func (s *Service) DeleteSession(ctx context.Context, in SessionIn) (Deleted, error) {
	s.mu.Lock()
	ss := s.sessions[in.SessionID]
	if ss == nil {
		s.mu.Unlock()
		return Deleted{}, op.Errorf(op.NotFound, "there is no Jupyter session %q: it was never made, was deleted, or expired; GET /v1/jupyter/sessions lists them", in.SessionID)
	}
	done := s.remove(ss)
	s.mu.Unlock()
	<-done
	op.Say(ctx, "The session %s was deleted", in.SessionID)
	return Deleted{Deleted: []string{in.SessionID}}, nil
}

// CreateSessionIn describes a new session.
type CreateSessionIn struct {
	SessionID  *string `json:"session_id" doc:"Name of the session; made up when missing"`
	KernelName *string `json:"kernel_name" doc:"Its kernel; Python when missing"`
	Cwd        *string `json:"cwd" doc:"Its working directory; the workspace when missing"`
}

// CreateSessionOut tells about the session.
type CreateSessionOut struct {
	SessionID  string `json:"session_id" doc:"Name of the session"`
	KernelName string `json:"kernel_name" doc:"Its kernel"`
	Message    string `json:"message" doc:"What happened"`
}

// CreateSession makes a session and starts its kernel.
func (s *Service) CreateSession(ctx context.Context, in CreateSessionIn) (CreateSessionOut, error) {
	dir, err := s.directory(in.Cwd)
	if err != nil {
		return CreateSessionOut{}, err
	}
	ss, made, err := s.enter(ctx, value(in.SessionID), value(in.KernelName), dir)
	if err != nil {
		return CreateSessionOut{}, err
	}
	defer s.leave(ss)
	out := CreateSessionOut{SessionID: ss.id, KernelName: ss.spec.Name, Message: "The session exists already"}
	if made {
		out.Message = "The session was made"
		select {
		case ss.turn <- struct{}{}:
			_, err = s.kernelOf(ctx, ss)
			<-ss.turn
		case <-ctx.Done(): // somebody else who knows its name was faster
			err = op.Errorf(op.Canceled, "nobody waits for the session any more")
		}
	}
	if err != nil {
		s.withdraw(ss)
		return CreateSessionOut{}, err
	}
	op.Say(ctx, "%s", out.Message)
	return out, nil
}
