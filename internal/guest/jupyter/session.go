package jupyter

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/guest/internal/kernel"
	"github.com/cove-sandbox/cove/internal/guest/internal/session"
)

// Session is a kernel that keeps variables. It is guarded by the service's lock,
// except what only the call with the turn uses.
type Session struct {
	session.Entry
	spec kernel.Spec
	k    *kernel.Kernel // nil: started with the next call
	busy bool           // a cell runs in k

	turn chan struct{} // held by the call that runs
	dir  string        // last requested
	lost string        // why the previous kernel ended; empty: there was none, or it was reported
}

// SessionInfo describes a session.
type SessionInfo struct {
	KernelName string  `json:"kernel_name" doc:"Kernel of the session"`
	LastUsed   float64 `json:"last_used" doc:"Unix time in seconds"`
	AgeSeconds int     `json:"age_seconds" doc:"Seconds since the session was created"`
	// Other Jupyter clients in the sandbox can share the kernel.
	ConnectionFile string `json:"connection_file,omitempty" doc:"File with which Jupyter clients in the sandbox connect to the kernel"`
	PID            int    `json:"pid,omitempty" doc:"Process ID of the kernel"`
	State          string `json:"state" enum:"idle,busy,stopped" doc:"busy while a cell runs; stopped until the next call starts a kernel"`
}

func (ss *Session) info() SessionInfo {
	i := SessionInfo{
		KernelName: ss.spec.Name, LastUsed: float64(ss.LastUsed().UnixMicro()) / 1e6,
		AgeSeconds: int(time.Since(ss.Created) / time.Second), State: "idle",
	}
	switch {
	case ss.Calls() > 0:
		i.State = "busy"
	case ss.k == nil || ss.k.Err() != nil:
		i.State = "stopped"
	}
	if ss.k != nil && ss.k.Err() == nil {
		i.ConnectionFile, i.PID = ss.k.ConnectionFile(), ss.k.PID()
	}
	return i
}

// enter finds or creates a session and counts a call in it, so that it does not expire. An
// empty ID creates a session with a generated ID.
func (s *Service) enter(ctx context.Context, id, name, dir string) (ss *Session, created bool, err error) {
	var spec kernel.Spec
	s.mu.Lock()
	_, known := s.sessions.Get(id)
	s.mu.Unlock()
	if !known || name != "" {
		if spec, err = s.kernelSpec(ctx, name); err != nil {
			return nil, false, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.sessions.Get(id); known && !ok && name == "" && !s.sessions.Closed() {
		return nil, false, op.Errorf(op.Conflict, "session %q was deleted during the call; retry to create a new one", id)
	}
	ss, created, err = s.sessions.Open(id, func() *Session {
		return &Session{spec: spec, dir: cmp.Or(dir, s.Workspace), turn: make(chan struct{}, 1)}
	})
	switch {
	case err != nil:
		return nil, false, err
	case name != "" && ss.spec.Name != spec.Name:
		return nil, false, op.Errorf(op.Conflict,
			"session %q has the kernel %s, not %s; omit kernel_name, or use another session_id", id, ss.spec.Name, spec.Name)
	}
	ss.Enter()
	s.runtime.Used = true
	s.pool.touch()
	return ss, created, nil
}

func (s *Service) leave(ss *Session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ss.Leave()
	s.pool.touch()
}

// endKernel returns a function that ends the kernel of a removed session. The lock is held.
func endKernel(ss *Session) func() {
	k, busy := ss.k, ss.busy
	switch {
	case k == nil:
		return nil
	case busy:
		return func() { k.Close() }
	}
	return func() {
		// Let the code's exit handlers run.
		ctx, cancel := context.WithTimeout(context.Background(), shutdownTime)
		defer cancel()
		_ = k.Shutdown(ctx)
	}
}

// remove removes a session without waiting for its end.
func (s *Service) remove(ss *Session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sessions.Remove(ss)
}

// ListSessionsOut are sessions by ID.
type ListSessionsOut struct {
	Sessions map[string]SessionInfo `json:"sessions" doc:"The sessions by ID"`
}

// ListSessions lists the sessions.
func (s *Service) ListSessions(context.Context, op.None) (ListSessionsOut, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := ListSessionsOut{Sessions: map[string]SessionInfo{}}
	for ss := range s.sessions.All() {
		out.Sessions[ss.ID] = ss.info()
	}
	return out, nil
}

// Deleted lists the deleted sessions.
type Deleted struct {
	Deleted []string `json:"deleted" doc:"IDs of the deleted sessions"`
}

// DeleteSessions ends all sessions and waits until their kernels have exited.
func (s *Service) DeleteSessions(ctx context.Context, _ op.None) (Deleted, error) {
	s.mu.Lock()
	var out Deleted
	var wait []<-chan struct{}
	for ss := range s.sessions.All() {
		out.Deleted = append(out.Deleted, ss.ID)
		wait = append(wait, s.sessions.Remove(ss))
	}
	s.mu.Unlock()
	for _, done := range wait {
		<-done
	}
	slices.Sort(out.Deleted)
	op.Say(ctx, "Deleted %d sessions", len(out.Deleted))
	return out, nil
}

// SessionIn selects a session.
type SessionIn struct {
	SessionID string `path:"session_id" doc:"ID of the session"`
}

// DeleteSession ends a session and waits until its kernel has exited.
func (s *Service) DeleteSession(ctx context.Context, in SessionIn) (Deleted, error) {
	s.mu.Lock()
	ss, err := s.sessions.Find(in.SessionID)
	if err != nil {
		s.mu.Unlock()
		return Deleted{}, err
	}
	done := s.sessions.Remove(ss)
	s.mu.Unlock()
	<-done
	op.Say(ctx, "Deleted session %s", in.SessionID)
	return Deleted{Deleted: []string{in.SessionID}}, nil
}

// CreateSessionIn describes a new session.
type CreateSessionIn struct {
	SessionID  *string `json:"session_id" doc:"ID of the session. Default: a generated one"`
	KernelName *string `json:"kernel_name" doc:"Kernel of the session. Default: Python"`
	Cwd        *string `json:"cwd" doc:"Working directory of the session. Default: the workspace"`
}

// CreateSessionOut describes the session.
type CreateSessionOut struct {
	SessionID  string `json:"session_id" doc:"ID of the session"`
	KernelName string `json:"kernel_name" doc:"Kernel of the session"`
	Message    string `json:"message" doc:"What happened"`
}

// CreateSession creates a session and starts its kernel.
func (s *Service) CreateSession(ctx context.Context, in CreateSessionIn) (CreateSessionOut, error) {
	dir, err := session.Directory(s.base, "cwd", in.Cwd)
	if err != nil {
		return CreateSessionOut{}, err
	}
	if err := s.provideKernel(ctx, op.Value(in.KernelName), nil); err != nil {
		return CreateSessionOut{}, err
	}
	ss, made, err := s.enter(ctx, op.Value(in.SessionID), op.Value(in.KernelName), dir)
	if err != nil {
		return CreateSessionOut{}, err
	}
	defer s.leave(ss)
	out := CreateSessionOut{SessionID: ss.ID, KernelName: ss.spec.Name, Message: "The session already exists"}
	if made {
		out.Message = "The session was created"
	}
	if made || s.isStopped(ss) {
		select {
		case ss.turn <- struct{}{}:
			_, err = s.ensureKernel(ctx, ss)
			<-ss.turn
		case <-ctx.Done(): // another caller with the same ID has the turn
			err = op.Errorf(op.Canceled, "create session: canceled")
		}
	}
	if err != nil {
		if made {
			s.remove(ss)
		}
		return CreateSessionOut{}, err
	}
	op.Say(ctx, "%s", out.Message)
	return out, nil
}

// isStopped reports whether the kernel of a session has exited.
func (s *Service) isStopped(ss *Session) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return ss.k == nil || ss.k.Err() != nil
}
