// Package jupyter runs code in Jupyter kernels: in sessions, each a kernel that
// keeps its variables, or in a kernel that is used once.
//
// It owns the sessions and their kernels, and a few kernels that are kept started
// so that nobody waits for one. A kernel is never handed from one caller to
// another: what a call without a session leaves in it is thrown away with it. A cell
// that takes too long is interrupted and its kernel kept; only if it does not let
// itself be interrupted is the kernel ended, and the reply says that the variables
// are lost. How kernels are spoken to is internal/kernel's affair.
package jupyter

import (
	"context"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/kernel"
	"github.com/cove-sandbox/cove/internal/op"
	"github.com/cove-sandbox/cove/internal/pathname"
	"github.com/cove-sandbox/cove/internal/proc"
)

// Config of the service.
type Config struct {
	Runner      *proc.Runner
	Venv        string // Python environment whose kernel is preferred; empty: none
	Home        string
	Workspace   string        // where code runs; empty: the home
	State       string        // where the sockets of kernels are, unless its path is too long; empty: the system's folder for temporary files
	MaxSessions int           // 0: 16
	Idle        time.Duration // how long an unused session is kept; 0: for ever
	Warm        int           // kernels that are kept started once one was used
	Disabled    bool          // keep none started, whatever Warm says
	Log         *slog.Logger
}

const (
	// outputLimit is how many bytes of one cell's outputs are kept.
	outputLimit = 16 << 20
	// startTime bounds the start of a kernel.
	startTime = time.Minute
	// queueTime bounds the wait for a kernel when many are to be started.
	queueTime = 3 * time.Minute
	// farewell is how long a kernel of a session may take to end by itself.
	farewell = 2 * time.Second
	// defaultTimeout is for callers that name none.
	defaultTimeout = 30 * time.Second
	// maxFolder is the longest path below which a kernel's sockets fit.
	maxFolder = 70
)

// Service runs code in kernels.
type Service struct {
	Config
	base  pathname.Base
	now   func() time.Time
	grace time.Duration // how long an interrupted cell may take to end
	limit int64         // bytes of output that are kept of a cell

	turns chan struct{} // taken by calls without a session
	pool  *pool
	specs specs
	life  context.Context // ends with the service
	end   context.CancelFunc
	tasks sync.WaitGroup // kernels that are being ended

	mu       sync.Mutex // guards what follows and all sessions
	closed   bool
	sessions map[string]*session
	alone    map[*kernel.Kernel]struct{} // kernels of calls without a session
	sweeper  *time.Timer
	used     time.Time // of the last call
	fault    string    // why the last start failed
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
	if c.Disabled {
		c.Warm = 0
	}
	s := &Service{
		Config:   c,
		base:     pathname.Base{Home: c.Home, Workspace: c.Workspace},
		now:      time.Now,
		grace:    5 * time.Second,
		limit:    outputLimit,
		turns:    make(chan struct{}, max(2, c.MaxSessions/2)),
		sessions: map[string]*session{},
		alone:    map[*kernel.Kernel]struct{}{},
	}
	s.life, s.end = context.WithCancel(context.Background())
	s.specs.find = func(ctx context.Context) ([]kernel.Spec, error) {
		return kernel.Find(ctx, kernel.FindConfig{Runner: c.Runner, Venv: c.Venv, Log: c.Log})
	}
	s.pool = &pool{warm: c.Warm, log: c.Log, start: func(spec kernel.Spec) (*kernel.Kernel, error) {
		return s.startKernel(s.life, spec, c.Workspace)
	}}
	return s
}

// Ops lists what it offers.
func (s *Service) Ops() []op.Op {
	const tag = "jupyter"
	execute := op.New(op.Spec{Name: "jupyter_execute", Route: "POST /v1/jupyter/execute", Tag: tag, SDK: "jupyter.execute_code",
		Doc: "Run a cell in a Jupyter kernel, Python unless kernel_name says otherwise. With session_id the kernel and its variables are kept, and the session is made if there is none of that name; without, the cell has a kernel of its own. " +
			"Magics, shell lines, top-level await and rich output work as in a notebook. " +
			"With stream=true the outputs come as events while they are made: output, then result."}, s.Execute)
	return []op.Op{
		op.WithStream[ExecuteIn, ExecuteEvent](execute, s.ExecuteStream),
		op.New(op.Spec{Name: "jupyter_info", Route: "GET /v1/jupyter/info", Tag: tag, SDK: "jupyter.get_info", ReadOnly: true,
			Doc: "Tell which kernels are installed, and how many sessions there are and may be."}, s.Info),
		op.New(op.Spec{Name: "jupyter_list_sessions", Route: "GET /v1/jupyter/sessions", Tag: tag, SDK: "jupyter.list_sessions", ReadOnly: true,
			Doc: "List the sessions by their ids."}, s.ListSessions),
		op.New(op.Spec{Name: "jupyter_delete_sessions", Route: "DELETE /v1/jupyter/sessions", Tag: tag, SDK: "jupyter.delete_sessions", Destructive: true,
			Doc: "End all sessions, even while cells run in them, and forget their variables."}, s.DeleteSessions),
		op.New(op.Spec{Name: "jupyter_delete_session", Route: "DELETE /v1/jupyter/sessions/{session_id}", Tag: tag, SDK: "jupyter.delete_session", Destructive: true,
			Doc: "End a session's kernel, even while a cell runs in it, and forget its variables."}, s.DeleteSession),
		op.New(op.Spec{Name: "jupyter_create_session", Route: "POST /v1/jupyter/sessions/create", Tag: tag, SDK: "jupyter.create_session",
			Doc: "Start a session: a kernel that keeps variables between calls. A session that exists already is returned as it is."}, s.CreateSession),
	}
}

// State for readiness: idle before the first call, absent without a Python that
// has ipykernel, failed if a kernel did not start the last time, ready otherwise.
func (s *Service) State() (state, why string) {
	if err := s.specs.missing(); err != nil {
		return "absent", err.Error()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.fault != "":
		return "failed", s.fault
	case s.used.IsZero():
		return "idle", "starts with the first call"
	}
	return "ready", ""
}

// Close ends every kernel.
func (s *Service) Close() error {
	s.mu.Lock()
	s.closed = true
	if s.sweeper != nil {
		s.sweeper.Stop()
	}
	for _, ss := range s.sessions {
		s.remove(ss)
	}
	for k := range s.alone {
		s.tasks.Go(func() { k.Close() })
	}
	s.mu.Unlock()
	s.end()
	s.pool.close()
	s.tasks.Wait()
	return nil
}

// folder is where the sockets of kernels are made.
func (s *Service) folder() string {
	if dir := s.Config.State; dir != "" && len(dir) <= maxFolder {
		return filepath.Join(dir, "jupyter")
	}
	return ""
}
