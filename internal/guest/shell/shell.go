// Package shell runs commands in terminal sessions: each session is a bash on a
// pseudo-terminal that keeps its directory, variables and jobs. API callers run commands in
// it, and viewers watch it and type.
//
// It owns the sessions, their shells, their recent output, and the hooks with which a shell
// reports the start and end of commands. It rejects a second command while one runs, and
// sessions above the limit. Its memory is limited, independent of the amount of output and
// of slow viewers.
package shell

import (
	"log/slog"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/guest/internal/pathname"
	"github.com/cove-sandbox/cove/internal/guest/internal/session"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

// Config of the service.
type Config struct {
	Runner      *proc.Runner
	Home        string
	Workspace   string        // where new sessions start; empty: the home
	State       string        // folder for files that pass commands to the shells
	Shell       string        // path of bash; empty: the one in PATH
	MaxSessions int           // 0: 50
	Idle        time.Duration // how long an unused session is kept; 0: no limit
	// Ran is called with each command that a person typed, after its end, and the call of the
	// person's connection, which is nil for text that an API caller typed.
	Ran func(call *op.Call, r Ran)
	Log *slog.Logger
}

// Ran is a command that a person typed.
type Ran struct {
	Session, Command, Output string
	ExitCode                 int
	Began                    time.Time
}

// Service owns the sessions.
type Service struct {
	Config
	base pathname.Base

	tasks sync.WaitGroup // goroutines and armed timers

	mu       sync.Mutex // guards the table; taken before a session's lock, never after it
	sessions *session.Table[*Session]
	end      sync.Once
}

// New returns the service. It has no side effects before the first session.
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
	s := &Service{Config: c, base: pathname.Base{Home: c.Home, Workspace: c.Workspace}}
	s.sessions = session.NewTable(&s.mu, session.Config[*Session]{
		Name: "shell", Field: "id", List: "GET /v1/shell/sessions", End: "DELETE /v1/shell/sessions/{id}",
		Max: c.MaxSessions, Idle: c.Idle, Log: c.Log, NewID: newID,
		Busy:      func(ss *Session) bool { return !ss.isIdle(true) },
		Evictable: func(ss *Session) bool { return ss.isIdle(false) },
		OnEnd:     func(ss *Session) func() { return ss.stop },
	})
	return s
}

// Ops lists the operations.
func (s *Service) Ops() []op.Op {
	return []op.Op{
		op.WithStream[ExecIn, StreamEvent](op.New(op.Spec{Name: "shell_exec", Route: "POST /v1/shell/exec",
			Tag: "shell", SDK: "shell.exec_command",
			Doc: "Run a command in a terminal session and return its output. The session keeps its working " +
				"directory, variables and jobs. Without id, or if the session does not exist, a new one is created. " +
				"With status running or no_change_timeout the command continues: use shell_view, shell_wait, shell_write and " +
				"shell_kill on it. Status terminated means that it was killed or ended the shell. " +
				"With Accept: text/event-stream the events are start, output, and finally exit, or timeout if " +
				"the command continues."}, s.Exec), s.ExecStream),
		op.WithStream[ViewIn, StreamEvent](op.New(op.Spec{Name: "shell_view", Missing404: true,
			Route: "POST /v1/shell/view", Tag: "shell", SDK: "shell.view", ReadOnly: true,
			Doc: "Show the output of the running or last command of a session, or the screen of a full-screen " +
				"program, and the records of earlier commands. " +
				"With Accept: text/event-stream the output of the running command is sent until it ends, as the " +
				"events of shell_exec."}, s.View), s.ViewStream),
		op.New(op.Spec{Name: "shell_wait", Missing404: true, Route: "POST /v1/shell/wait", Tag: "shell",
			SDK: "shell.wait_for_process", ReadOnly: true,
			Doc: "Wait until the running command of a session ends, for a limited time."}, s.Wait),
		op.New(op.Spec{Name: "shell_write", Missing404: true, Route: "POST /v1/shell/write", Tag: "shell", SDK: "shell.write_to_process",
			Doc: "Type text into the running command of a session, with or without Enter. Control characters are " +
				"keys; \\u0003 is Ctrl-C."}, s.Write),
		op.New(op.Spec{Name: "shell_kill", Missing404: true, Route: "POST /v1/shell/kill", Tag: "shell",
			SDK: "shell.kill_process", Destructive: true,
			Doc: "Terminate the running command of a session and keep the session."}, s.Kill),
		op.New(op.Spec{Name: "shell_create_session", Route: "POST /v1/shell/sessions/create", Tag: "shell", SDK: "shell.create_session",
			Doc: "Create a session, or return the existing one."}, s.CreateSession),
		op.New(op.Spec{Name: "shell_update_session", Missing404: true, Route: "POST /v1/shell/sessions/update",
			Tag: "shell", SDK: "shell.update_session",
			Doc: "Change the settings of a session."}, s.UpdateSession),
		op.New(op.Spec{Name: "shell_get_terminal_url", Route: "GET /v1/shell/terminal-url", Tag: "shell",
			SDK: "shell.get_terminal_url", ReadOnly: true,
			Doc: "Get the URL of the web terminal for a session. The session is created by opening the page or " +
				"running a command in it."}, s.TerminalURL),
		op.New(op.Spec{Name: "shell_get_session_stats", Access: op.AccessRead, Route: "GET /v1/shell/sessions/stats",
			Tag: "shell", SDK: "shell.get_session_stats", ReadOnly: true,
			Doc: "Show the number of sessions and the limits."}, s.Stats),
		op.New(op.Spec{Name: "shell_list_sessions", Access: op.AccessRead, Route: "GET /v1/shell/sessions",
			Tag: "shell", SDK: "shell.list_sessions", ReadOnly: true,
			Doc: "List the live sessions by ID."}, s.List),
		op.New(op.Spec{Name: "shell_cleanup_all_sessions", Route: "DELETE /v1/shell/sessions", Tag: "shell",
			SDK: "shell.cleanup_all_sessions", Destructive: true,
			Doc: "End all sessions and all programs that run in them."}, s.CleanupAll),
		op.New(op.Spec{Name: "shell_cleanup_session", Missing404: true,
			Route: "DELETE /v1/shell/sessions/{session_id}", Tag: "shell", SDK: "shell.cleanup_session", Destructive: true,
			Doc: "End a session and all programs that run in it."}, s.Cleanup),
		op.Duplex(op.Spec{Name: "shell_ws", Route: "GET /v1/shell/ws", Tag: "shell",
			Doc: "Attach to a session's terminal. The server sends session_id, ready, output (starting with recent " +
				"output), ping and, when the shell has ended, exit with its code. " +
				"The client sends input, resize (cols, rows), ping and pong. Without session_id a new session is created."}, s.Attach),
	}
}

// Close ends all sessions and all programs that run in them.
func (s *Service) Close() error {
	s.end.Do(func() {
		s.sessions.Close()
		s.tasks.Wait()
	})
	return nil
}
