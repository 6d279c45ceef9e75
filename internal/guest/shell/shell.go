// Package shell keeps terminals: each session is one bash on a pseudo-terminal
// that keeps its directory, variables and jobs from command to command, for
// programs that run commands in it and for people who watch and type.
//
// It owns the sessions, their shells from start to end, what they printed
// recently, and the hooks by which a shell tells where a command starts and ends.
// It refuses a second command while one runs, more sessions than allowed, and to
// grow with what programs print or with viewers that do not read.
package shell

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
	Workspace   string        // where new sessions start; empty: the home
	State       string        // folder in which commands are handed to the shells
	Shell       string        // path of bash; empty: the one in PATH
	MaxSessions int           // 0: 50
	Idle        time.Duration // how long an unused session is kept; 0: for ever
	Log         *slog.Logger
}

// Service keeps sessions.
type Service struct {
	Config
	base pathname.Base

	tasks sync.WaitGroup // goroutines and armed timers

	mu       sync.Mutex // guards what follows; taken before a session's lock, never after it
	closed   bool
	sessions map[string]*session
	sweeper  *time.Timer
	end      sync.Once
}

// New returns the service; nothing is started or touched before the first session.
func New(c Config) *Service {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.MaxSessions <= 0 {
		c.MaxSessions = 50
	}
	if c.Workspace == "" {
		c.Workspace = c.Home
	}
	return &Service{
		Config:   c,
		base:     pathname.Base{Home: c.Home, Workspace: c.Workspace},
		sessions: map[string]*session{},
	}
}

// Ops lists what it offers.
func (s *Service) Ops() []op.Op {
	return []op.Op{
		op.New(op.Spec{Name: "shell_exec", Route: "POST /v1/shell/exec", Tag: "shell", SDK: "shell.exec_command",
			Doc: "Run a command in a terminal session and return what it printed. The session keeps its directory, variables and jobs; without an id a new one is made, and an unknown id makes a session of that name. " +
				"A command that outlives timeout or no_change_timeout goes on: shell_view, shell_wait, shell_write and shell_kill deal with it."}, s.Exec),
		op.New(op.Spec{Name: "shell_view", Route: "POST /v1/shell/view", Tag: "shell", SDK: "shell.view", ReadOnly: true,
			Doc: "See what the running or last command of a session printed, or the screen of a full-screen program, and the records of earlier commands."}, s.View),
		op.New(op.Spec{Name: "shell_wait", Route: "POST /v1/shell/wait", Tag: "shell", SDK: "shell.wait_for_process", ReadOnly: true,
			Doc: "Wait for the running command of a session to end, for a limited time."}, s.Wait),
		op.New(op.Spec{Name: "shell_write", Route: "POST /v1/shell/write", Tag: "shell", SDK: "shell.write_to_process",
			Doc: "Type into the running command of a session, with or without Enter. Control characters are keys: \\u0003 is Ctrl-C."}, s.Write),
		op.New(op.Spec{Name: "shell_kill", Route: "POST /v1/shell/kill", Tag: "shell", SDK: "shell.kill_process", Destructive: true,
			Doc: "End the running command of a session; the session stays."}, s.Kill),
		op.New(op.Spec{Name: "shell_create_session", Route: "POST /v1/shell/sessions/create", Tag: "shell", SDK: "shell.create_session",
			Doc: "Make a session, or find it if it exists."}, s.CreateSession),
		op.New(op.Spec{Name: "shell_update_session", Route: "POST /v1/shell/sessions/update", Tag: "shell", SDK: "shell.update_session",
			Doc: "Change the settings of a session."}, s.UpdateSession),
		op.New(op.Spec{Name: "shell_get_terminal_url", Route: "GET /v1/shell/terminal-url", Tag: "shell", SDK: "shell.get_terminal_url", ReadOnly: true,
			Doc: "Get the address of the web terminal for a session, as the caller reaches it. The session is made when the page is opened or a command names it."}, s.TerminalURL),
		op.New(op.Spec{Name: "shell_get_session_stats", Route: "GET /v1/shell/sessions/stats", Tag: "shell", SDK: "shell.get_session_stats", ReadOnly: true,
			Doc: "Tell how many sessions there are and may be."}, s.Stats),
		op.New(op.Spec{Name: "shell_list_sessions", Route: "GET /v1/shell/sessions", Tag: "shell", SDK: "shell.list_sessions", ReadOnly: true,
			Doc: "List the living sessions by id."}, s.List),
		op.New(op.Spec{Name: "shell_cleanup_all_sessions", Route: "DELETE /v1/shell/sessions", Tag: "shell", SDK: "shell.cleanup_all_sessions", Destructive: true,
			Doc: "End all sessions and everything that runs in them."}, s.CleanupAll),
		op.New(op.Spec{Name: "shell_cleanup_session", Route: "DELETE /v1/shell/sessions/{session_id}", Tag: "shell", SDK: "shell.cleanup_session", Destructive: true,
			Doc: "End a session and everything that runs in it."}, s.Cleanup),
		op.Duplex(op.Spec{Name: "shell_ws", Route: "GET /v1/shell/ws", Tag: "shell",
			Doc: "Attach to a session's terminal. The server sends session_id, ready, output (first what was printed recently), ping and, when the shell has ended, exit with its code; " +
				"the client sends input, resize (cols, rows) and pong. Without session_id a new session is made."}, s.Talk),
	}
}

// Close ends all sessions and everything that runs in them.
func (s *Service) Close() error {
	s.end.Do(func() {
		s.mu.Lock()
		s.closed = true
		if s.sweeper != nil && s.sweeper.Stop() {
			s.tasks.Done()
		}
		s.mu.Unlock()
		s.cleanup(func(*session) bool { return true })
		s.tasks.Wait()
	})
	return nil
}
