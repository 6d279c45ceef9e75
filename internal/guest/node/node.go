// Package node runs JavaScript in Node.js: each call in a new process, or in a session,
// which is a process that keeps its variables.
//
// It owns the sessions with their processes, and the folders for the files of a call. It
// keeps a limited part of the output. A cell that times out is interrupted and its session
// is kept. If the cell ignores the interrupt, the process is killed, and the reply says that
// the variables are lost. TypeScript is converted to JavaScript. The package does not install versions of Node.js.
package node

import (
	"log/slog"
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
	Runner      *proc.Runner
	Home        string
	Workspace   string        // where code runs; empty: the home
	State       string        // folder for the files of a call; empty: the temporary folder
	Version     string        // default version, if it is installed; empty: the first in PATH
	MaxSessions int           // 0: 16
	Idle        time.Duration // upper limit of a session's idle timeout; 0: none
	Log         *slog.Logger
}

const (
	// outputLimit is how many bytes of a reply the output of a cell may have.
	outputLimit = 16 << 20
	// startTime limits the start of a session's process.
	startTime = 30 * time.Second
	// stopGrace is how long a process may take to exit after a timeout.
	stopGrace = 500 * time.Millisecond
)

// Service runs JavaScript.
type Service struct {
	Config
	base  pathname.Base
	grace time.Duration // how long an interrupted cell may take to end
	limit int64         // how many bytes of a cell's output are kept

	installed       *installations
	typesPackage    string        // npm package that removes types
	installingTypes chan struct{} // held by the call that installs it

	turns chan struct{}  // limits the calls without a session
	tasks sync.WaitGroup // processes that are being ended

	mu       sync.Mutex            // guards what follows and all sessions
	oneShot  map[*process]struct{} // processes of calls without a session
	sessions *session.Table[*Session]
	runtime  kernel.Readiness
}

// New returns the service. It has no side effects before the first call.
func New(c Config) *Service {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Workspace == "" {
		c.Workspace = c.Home
	}
	if c.MaxSessions <= 0 {
		c.MaxSessions = 16
	}
	s := &Service{
		Config: c,
		base:   pathname.Base{Home: c.Home, Workspace: c.Workspace},
		grace:  5 * time.Second,
		limit:  outputLimit,

		typesPackage:    typesPackage,
		installingTypes: make(chan struct{}, 1),
		turns:           make(chan struct{}, c.MaxSessions),
		oneShot:         map[*process]struct{}{},
		installed: &installations{
			runner: c.Runner, home: c.Home, workspace: c.Workspace, preferred: c.Version, versions: map[string]cachedVersion{},
		},
	}
	s.sessions = session.NewTable(&s.mu, session.Config[*Session]{
		Name: "Node.js", Field: "session_id", List: "GET /v1/nodejs/sessions", End: "DELETE /v1/nodejs/sessions/{session_id}",
		Max: c.MaxSessions, Log: c.Log, OnEnd: killProcess,
	})
	return s
}

// Ops lists the operations.
func (s *Service) Ops() []op.Op {
	const tag = "nodejs"
	execute := op.New(op.Spec{Name: "nodejs_execute", Route: "POST /v1/nodejs/execute", Tag: tag, SDK: "nodejs.execute_code",
		Doc: "Run JavaScript in Node.js. Without a session the code runs in a new process; with session_id or " +
			"stateful it runs in a process that keeps variables, where const, let and class may be redeclared. " +
			"Top-level await, require, import and import() work in both. The value of the last expression is among " +
			"the outputs; a promise is awaited. " +
			"With stream=true the outputs are sent as events as they are produced: output, then result."}, s.Execute)
	return []op.Op{
		op.WithStream[ExecuteIn, ExecuteEvent](execute, s.ExecuteStream),
		op.New(op.Spec{Name: "nodejs_info", Route: "GET /v1/nodejs/info", Tag: tag, SDK: "nodejs.get_info", ReadOnly: true,
			Doc: "List the installed versions of Node.js and the packages that code can require."}, s.Info),
		op.New(op.Spec{Name: "nodejs_create_session", Route: "POST /v1/nodejs/sessions", Tag: tag, SDK: "nodejs.create_session",
			Doc: "Create a session: a Node.js process that keeps variables between calls. An existing session is " +
				"returned unchanged."}, s.CreateSession),
		op.New(op.Spec{Name: "nodejs_list_sessions", Route: "GET /v1/nodejs/sessions", Tag: tag, SDK: "nodejs.list_sessions", ReadOnly: true,
			Doc: "List the sessions by ID."}, s.ListSessions),
		op.New(op.Spec{Name: "nodejs_get_session", Route: "GET /v1/nodejs/sessions/{session_id}", Tag: tag,
			SDK: "nodejs.get_session", ReadOnly: true,
			Doc: "Show one session."}, s.GetSession),
		op.New(op.Spec{Name: "nodejs_update_session", Route: "PATCH /v1/nodejs/sessions/{session_id}", Tag: tag, SDK: "nodejs.update_session",
			Doc: "Change the working directory or the idle timeout of a session. A new directory takes effect with " +
				"the next call."}, s.UpdateSession),
		op.New(op.Spec{Name: "nodejs_delete_session", Route: "DELETE /v1/nodejs/sessions/{session_id}", Tag: tag,
			SDK: "nodejs.delete_session", Destructive: true,
			Doc: "Delete a session and its variables, even while code runs in it."}, s.DeleteSession),
	}
}

// State returns the readiness: absent if Node.js is not installed, idle before the first
// call, failed if the last start failed, otherwise ready.
func (s *Service) State() (state, why string) {
	if _, ok := s.Runner.Look("node", "nodejs"); !ok {
		return "absent", notInstalled
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.runtime.State()
}

// Close ends every process.
func (s *Service) Close() error {
	s.mu.Lock()
	s.sessions.Shut()
	for p := range s.oneShot {
		s.tasks.Go(p.kill)
	}
	s.mu.Unlock()
	s.tasks.Wait()
	s.sessions.Wait()
	return nil
}
