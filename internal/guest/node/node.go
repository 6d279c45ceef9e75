// Package node runs JavaScript in Node.js: each call in a process of its own, or
// in a session, which is a process that lives on and keeps its variables.
//
// It owns the sessions with their processes, and the folders in which the files of
// a call lie. It keeps a bounded part of what code prints, however much that is. A
// cell that takes too long is interrupted and its session kept; only if it does not
// let itself be interrupted is its process ended, and the reply says that the
// variables are lost. It installs nothing: which versions and packages of Node.js
// there are is the machine's affair.
package node

import (
	"log/slog"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/op"
	"github.com/cove-sandbox/cove/internal/pathname"
	"github.com/cove-sandbox/cove/internal/proc"
)

// Config of the service.
type Config struct {
	Runner      *proc.Runner
	Home        string
	Workspace   string        // where code runs; empty: the home
	State       string        // where the files of a call are laid; empty: the system's folder for temporary files
	MaxSessions int           // 0: 16
	Idle        time.Duration // the longest that an unused session is kept; 0: as long as it asks for
	Log         *slog.Logger
}

const (
	// outputLimit is how many bytes of one cell's outputs are kept.
	outputLimit = 16 << 20
	// startTime bounds the start of a session's process.
	startTime = 30 * time.Second
	// stopGrace is how long a process may take to end when its time is up.
	stopGrace = 500 * time.Millisecond
	// defaultTimeout is for callers that name none.
	defaultTimeout = 30 * time.Second
)

// Service runs JavaScript.
type Service struct {
	Config
	base  pathname.Base
	now   func() time.Time
	grace time.Duration // how long an interrupted cell may take to end
	limit int64         // bytes of output that are kept of a cell

	turns chan struct{}  // taken by calls in processes of their own
	tasks sync.WaitGroup // processes that are being ended

	mu       sync.Mutex // guards what follows and all sessions
	closed   bool
	calls    map[*process]struct{} // those of no session
	sessions map[string]*session
	sweeper  *time.Timer
	fault    string // why the last start failed
	used     bool
	versions map[string]known
}

// New returns the service; nothing is started or touched before the first call.
func New(c Config) *Service {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.MaxSessions <= 0 {
		c.MaxSessions = 16
	}
	if c.Workspace == "" {
		c.Workspace = c.Home
	}
	return &Service{
		Config:   c,
		base:     pathname.Base{Home: c.Home, Workspace: c.Workspace},
		now:      time.Now,
		grace:    5 * time.Second,
		limit:    outputLimit,
		turns:    make(chan struct{}, c.MaxSessions),
		calls:    map[*process]struct{}{},
		sessions: map[string]*session{},
		versions: map[string]known{},
	}
}

// Ops lists what it offers.
func (s *Service) Ops() []op.Op {
	const tag = "nodejs"
	execute := op.New(op.Spec{Name: "nodejs_execute", Route: "POST /v1/nodejs/execute", Tag: tag, SDK: "nodejs.execute_code",
		Doc: "Run JavaScript in Node.js. Without a session the code has a process of its own; with session_id or stateful it runs in a process that keeps variables, where const, let and class may be declared again. " +
			"Top-level await, require, import and import() work in both; the value of the last expression is among the outputs, awaited if it is a promise. " +
			"With stream=true the outputs come as events while they are made: output, then result."}, s.Execute)
	return []op.Op{
		op.WithStream[ExecuteIn, ExecuteEvent](execute, s.ExecuteStream),
		op.New(op.Spec{Name: "nodejs_info", Route: "GET /v1/nodejs/info", Tag: tag, SDK: "nodejs.get_info", ReadOnly: true,
			Doc: "Tell which versions of Node.js are installed, and which packages code can require."}, s.Info),
		op.New(op.Spec{Name: "nodejs_create_session", Route: "POST /v1/nodejs/sessions", Tag: tag, SDK: "nodejs.create_session",
			Doc: "Start a session: a Node.js process that keeps variables between calls. A session that exists already is returned as it is."}, s.CreateSession),
		op.New(op.Spec{Name: "nodejs_list_sessions", Route: "GET /v1/nodejs/sessions", Tag: tag, SDK: "nodejs.list_sessions", ReadOnly: true,
			Doc: "List the sessions by their ids."}, s.ListSessions),
		op.New(op.Spec{Name: "nodejs_get_session", Route: "GET /v1/nodejs/sessions/{session_id}", Tag: tag, SDK: "nodejs.get_session", ReadOnly: true,
			Doc: "Tell about one session."}, s.GetSession),
		op.New(op.Spec{Name: "nodejs_update_session", Route: "PATCH /v1/nodejs/sessions/{session_id}", Tag: tag, SDK: "nodejs.update_session",
			Doc: "Change the working directory of a session or how long it is kept unused. A directory takes effect with the next call."}, s.UpdateSession),
		op.New(op.Spec{Name: "nodejs_delete_session", Route: "DELETE /v1/nodejs/sessions/{session_id}", Tag: tag, SDK: "nodejs.delete_session", Destructive: true,
			Doc: "End a session's process, even while code runs in it, and forget its variables."}, s.DeleteSession),
	}
}

// State for readiness: idle before the first call, absent without Node.js, failed
// if it did not start the last time, ready otherwise.
func (s *Service) State() (state, why string) {
	if _, ok := s.Runner.Look("node", "nodejs"); !ok {
		return "absent", absent
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.fault != "":
		return "failed", s.fault
	case !s.used:
		return "idle", "starts with the first call"
	}
	return "ready", ""
}

// Close ends every process.
func (s *Service) Close() error {
	s.mu.Lock()
	s.closed = true
	if s.sweeper != nil {
		s.sweeper.Stop()
	}
	for _, ss := range s.sessions {
		s.remove(ss)
	}
	for p := range s.calls {
		s.tasks.Go(p.kill)
	}
	s.mu.Unlock()
	s.tasks.Wait()
	return nil
}
