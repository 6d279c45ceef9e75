// Package jupyter runs code in Jupyter kernels: in sessions, each a kernel that keeps its
// variables, or in a kernel that is used once.
//
// It owns the sessions and their kernels, and a pool of kernels that are started in advance.
// The kernel of a call without a session is used only for this call. A cell that times out
// is interrupted and its kernel is kept. If the cell ignores the interrupt, the kernel is
// killed, and the reply says that its variables are lost. Missing kernels of Python, R and Java
// are installed on first use.
package jupyter

import (
	"context"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/guest/internal/kernel"
	"github.com/cove-sandbox/cove/internal/guest/internal/pathname"
	"github.com/cove-sandbox/cove/internal/guest/internal/session"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

// Config of the service.
type Config struct {
	Runner  *proc.Runner
	Python  string // interpreter with the highest priority; empty: none
	Version string // preferred Python version, if it is installed; empty: none
	// Venv is the Python environment whose kernel is preferred; empty: none. It is built on first
	// use if there is no Python kernel.
	Venv        string
	Packages    string // that such an environment gets; empty: ipykernel
	Packaged    bool   // install Debian packages, with sudo, for kernels of other languages
	Home        string
	Workspace   string        // where code runs; empty: the home
	State       string        // folder for the sockets of kernels, unless its path is too long; empty: the temporary folder
	MaxSessions int           // 0: 16
	Idle        time.Duration // how long an unused session is kept; 0: no limit
	Warm        int           // kernels to start in advance after the first use
	Disabled    bool          // overrides Warm: starts no kernel in advance
	Log         *slog.Logger
}

const (
	// outputLimit is how many bytes of a cell's output are kept.
	outputLimit = 16 << 20
	// startTime limits the start of a kernel.
	startTime = time.Minute
	// queueTime limits the wait for a kernel while many are being started.
	queueTime = 3 * time.Minute
	// shutdownTime is how long a session's kernel may take to exit after a request.
	shutdownTime = 2 * time.Second
	// maxFolder is the maximum path length of the folder for sockets.
	maxFolder = 70
)

// Service runs code in kernels.
type Service struct {
	Config
	base  pathname.Base
	grace time.Duration // how long an interrupted cell may take to end
	limit int64         // how many bytes of a cell's output are kept

	turns     chan struct{} // limits the calls without a session
	pool      *pool
	specs     specs
	installer *installer
	recipes   map[string]*recipe
	life      context.Context // ends with the service
	end       context.CancelFunc
	tasks     sync.WaitGroup // kernels that are being ended

	mu       sync.Mutex // guards what follows and all sessions
	sessions *session.Table[*Session]
	oneShot  map[*kernel.Kernel]struct{} // kernels of calls without a session
	runtime  kernel.Readiness
}

// New returns the service. It has no side effects before the first call.
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
	if c.Packages == "" {
		c.Packages = "ipykernel\n"
	}
	if c.Disabled {
		c.Warm = 0
	}
	s := &Service{
		Config:  c,
		base:    pathname.Base{Home: c.Home, Workspace: c.Workspace},
		grace:   10 * time.Second,
		limit:   outputLimit,
		turns:   make(chan struct{}, max(2, c.MaxSessions/2)),
		oneShot: map[*kernel.Kernel]struct{}{},
	}
	s.sessions = session.NewTable(&s.mu, session.Config[*Session]{
		Name: "Jupyter", Field: "session_id", List: "GET /v1/jupyter/sessions", End: "DELETE /v1/jupyter/sessions/{session_id}",
		Max: c.MaxSessions, Idle: c.Idle, Log: c.Log, OnEnd: endKernel,
		Busy: func(ss *Session) bool { return ss.k != nil && time.Since(ss.k.SharedUse()) < ss.Idle() }, // by other clients, such as JupyterLab
	})
	s.life, s.end = context.WithCancel(context.Background())
	s.installer, s.recipes = s.newInstaller(), newRecipes()
	s.specs.find = func(ctx context.Context) ([]kernel.Spec, error) {
		return kernel.Find(ctx, kernel.FindConfig{Runner: c.Runner, Venv: c.Venv, Python: c.Python, Version: c.Version, Log: c.Log})
	}
	s.pool = &pool{warm: c.Warm, keepFor: c.Idle, log: c.Log, start: func(spec kernel.Spec) (*kernel.Kernel, error) {
		return s.startKernel(s.life, spec, c.Workspace)
	}}
	return s
}

// Ops lists the operations.
func (s *Service) Ops() []op.Op {
	const tag = "jupyter"
	execute := op.New(op.Spec{Name: "jupyter_execute", Route: "POST /v1/jupyter/execute", Tag: tag, SDK: "jupyter.execute_code",
		Doc: "Run a cell in a Jupyter kernel: Python, or the one in kernel_name. With session_id the kernel and " +
			"its variables are kept, and a missing session is created; otherwise the kernel is used only for this call. " +
			"Magics, shell lines, top-level await and rich output work as in a notebook. " +
			"With stream=true the outputs are sent as events as they are produced: output (including clear_output and " +
			"update_display_data, which change earlier outputs), then result."}, s.Execute)
	return []op.Op{
		op.WithStream[ExecuteIn, ExecuteEvent](execute, s.ExecuteStream),
		op.New(op.Spec{Name: "jupyter_info", Route: "GET /v1/jupyter/info", Tag: tag, SDK: "jupyter.get_info", ReadOnly: true,
			Doc: "List the installed kernels, and show the number of sessions and the limits."}, s.Info),
		op.New(op.Spec{Name: "jupyter_list_sessions", Route: "GET /v1/jupyter/sessions", Tag: tag, SDK: "jupyter.list_sessions", ReadOnly: true,
			Doc: "List the sessions by ID."}, s.ListSessions),
		op.New(op.Spec{Name: "jupyter_delete_sessions", Route: "DELETE /v1/jupyter/sessions", Tag: tag,
			SDK: "jupyter.delete_sessions", Destructive: true,
			Doc: "Delete all sessions and their variables, even while cells run in them."}, s.DeleteSessions),
		op.New(op.Spec{Name: "jupyter_delete_session", Route: "DELETE /v1/jupyter/sessions/{session_id}", Tag: tag,
			SDK: "jupyter.delete_session", Destructive: true,
			Doc: "Delete a session and its variables, even while a cell runs in it."}, s.DeleteSession),
		op.New(op.Spec{Name: "jupyter_create_session", Route: "POST /v1/jupyter/sessions/create", Tag: tag, SDK: "jupyter.create_session",
			Doc: "Create a session: a kernel that keeps variables between calls. An existing session is returned " +
				"unchanged, with a new kernel if its own has exited."}, s.CreateSession),
	}
}

// State returns the readiness: absent if no Python has ipykernel, idle before the first
// call, failed if the last start failed, otherwise ready.
func (s *Service) State() (state, why string) {
	if err := s.specs.missing(); err != nil {
		return "absent", s.describeMissing(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.runtime.State()
}

// Close ends every kernel.
func (s *Service) Close() error {
	s.mu.Lock()
	s.sessions.Shut()
	for k := range s.oneShot {
		s.tasks.Go(func() { k.Close() })
	}
	s.mu.Unlock()
	s.end()
	s.pool.close()
	s.tasks.Wait()
	s.sessions.Wait()
	return nil
}

// folder returns the folder for the sockets of kernels.
func (s *Service) folder() string {
	if dir := s.Config.State; dir != "" && len(dir) <= maxFolder {
		return filepath.Join(dir, "jupyter")
	}
	return ""
}
