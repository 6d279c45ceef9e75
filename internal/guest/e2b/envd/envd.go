// Package envd implements E2B's daemon of that name for their clients: processes, terminals, files and watchers.
//
// It owns the processes that it starts. Authentication happens before it. It selects the user of a call: the sandbox's own
// user, or another one through sudo. All state is limited: output without a subscriber is discarded.
package envd

import (
	"log/slog"
	"net/http"
	"sync"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/guest/internal/connect"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

// Port is the port on which E2B's clients expect the service.
const Port = 49983

// Config of the service.
type Config struct {
	Runner *proc.Runner
	Home   string
	// Contained means that the machine is a sandbox, in which the user that E2B's clients expect may be created.
	Contained bool
	// Prepare is called before each process is started. It may be nil.
	Prepare func()
	Watches Watches
	Usage   func() Usage
	// Helper is the command that calls Help, for files of other users.
	Helper []string
	Log    *slog.Logger
}

// Service serves E2B's clients.
type Service struct {
	Config
	routes   func() *http.ServeMux // created on first use, to keep the start short
	users    users
	procs    processes
	watchers watchers

	otherWatches otherWatches
}

// New returns the service. It starts nothing.
func New(c Config) *Service {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	s := &Service{Config: c}
	s.routes = sync.OnceValue(s.newRoutes)
	s.users = users{runner: c.Runner, home: c.Home, contained: c.Contained, log: c.Log}
	s.procs = processes{byPID: map[int]*process{}, quit: make(chan struct{})}
	s.watchers = watchers{open: map[*watcher]bool{}, byID: map[string]*watcher{}}
	return s
}

// Path is the path prefix of requests for the service.
const Path = "/e2b/envd"

// Ops lists the operations.
func (s *Service) Ops() []op.Op {
	h := http.StripPrefix(Path, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.routes().ServeHTTP(w, r) }))
	return []op.Op{
		op.Handle(op.Spec{Name: "e2b_envd", Content: op.ContentAPI, Route: Path + "/{path...}", Tag: "e2b",
			Doc: "API for E2B's clients: processes, terminals and files, as on port 49983 of their sandboxes."}, h),
		op.Handle(op.Spec{Name: "e2b_file", Content: op.ContentForeign, Route: "GET " + Path + "/files", Tag: "e2b",
			Doc: "Download a file, for E2B's clients."}, h),
	}
}

func (s *Service) newRoutes() *http.ServeMux {
	m := http.NewServeMux()
	process := func(method string, h http.Handler) { m.Handle("/process.Process/"+method, h) }
	process("Start", connect.ServerStream(s.start))
	process("Connect", connect.ServerStream(s.attach))
	process("List", connect.Unary(s.list))
	process("Update", connect.Unary(s.update))
	process("SendInput", connect.Unary(s.sendInput))
	process("StreamInput", connect.ClientStream(s.streamInput))
	process("CloseStdin", connect.Unary(s.closeStdin))
	process("SendSignal", connect.Unary(s.sendSignal))
	files := func(method string, h http.Handler) { m.Handle("/filesystem.Filesystem/"+method, h) }
	files("Stat", connect.Unary(s.stat))
	files("MakeDir", connect.Unary(s.makeDir))
	files("Move", connect.Unary(s.move))
	files("ListDir", connect.Unary(s.listDir))
	files("Remove", connect.Unary(s.remove))
	files("WatchDir", connect.ServerStream(s.watchDir))
	files("CreateWatcher", connect.Unary(s.createWatcher))
	files("GetWatcherEvents", connect.Unary(s.watcherEvents))
	files("RemoveWatcher", connect.Unary(s.removeWatcher))
	m.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	m.HandleFunc("GET /files", s.download)
	m.HandleFunc("POST /files", s.upload)
	m.HandleFunc("GET /envs", s.variables)
	m.HandleFunc("GET /metrics", s.metrics)
	m.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { writeFault(w, http.StatusNotFound, "no such route") })
	return m
}

// Running returns the number of running processes.
func (s *Service) Running() int { return s.procs.count() }

// Close ends all streams and processes. It is idempotent.
func (s *Service) Close() error {
	s.otherWatches.close()
	s.procs.close()
	return nil
}
