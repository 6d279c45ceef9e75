// Package bash runs commands as processes with pipes: each command is a new bash,
// whose stdout and stderr are kept separately and read by byte offsets.
//
// It owns the sessions (a working directory and an environment), their commands until
// they end, and the kept output, in memory and in unlinked files below the state folder.
// Sessions, commands and output are limited. The oldest output and the oldest ended
// commands are discarded first; a request for them reports that. Background processes of
// a command belong to the runner.
package bash

import (
	"container/list"
	"log/slog"
	"path/filepath"
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
	State       string        // folder for output that exceeds the memory limit
	MaxSessions int           // 0: 100
	Idle        time.Duration // how long an unused session is kept; 0: no limit
	Log         *slog.Logger
}

const (
	// maxRecords is how many commands a session keeps.
	maxRecords = 100
	// maxReply limits the bytes of each stream in one reply.
	maxReply = 32 << 20
	// grace is the time between TERM and KILL when the service ends a command.
	grace = 500 * time.Millisecond
)

// Service runs commands.
type Service struct {
	Config
	base  pathname.Base
	store *store

	tasks sync.WaitGroup // commands that are not settled, and armed hard timeouts
	quit  chan struct{}  // closed after waiting for unkillable processes times out

	mu       sync.Mutex // guards what follows and all sessions
	shell    string     // path of bash; empty: not searched yet
	sessions *session.Table[*Session]
	finished *list.List // of *command, oldest end first
	end      sync.Once
}

// New returns the service. It has no side effects before the first command.
func New(c Config) *Service {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.MaxSessions <= 0 {
		c.MaxSessions = 100
	}
	if c.Workspace == "" {
		c.Workspace = c.Home
	}
	s := &Service{
		Config:   c,
		base:     pathname.Base{Home: c.Home, Workspace: c.Workspace},
		quit:     make(chan struct{}),
		finished: list.New(),
	}
	s.sessions = session.NewTable(&s.mu, session.Config[*Session]{
		Name: "bash", Field: "session_id", List: "GET /v1/bash/sessions", End: "POST /v1/bash/sessions/{session_id}/close",
		Max: c.MaxSessions, Idle: c.Idle, Log: c.Log,
		Evictable: func(*Session) bool { return true },
		OnEnd:     s.discardSession,
	})
	s.store = newStore(filepath.Join(c.State, "bash"), c.Log, s.reclaim)
	return s
}

// Ops lists the operations.
func (s *Service) Ops() []op.Op {
	exec := op.New(op.Spec{Name: "bash_exec", Route: "POST /v1/bash/exec", Tag: "bash", SDK: "bash.exec",
		Doc: "Run a command in a new bash process. The call returns when the command exits. With async_mode or " +
			"timeout it may return earlier: the command continues, and bash_output reads the rest. " +
			"With stream=true the output is sent as events as it is written: start, stdout, stderr, then exit, or " +
			"timeout if the command continues."}, s.Exec)
	return []op.Op{
		op.WithStream[ExecIn, ExecEvent](exec, s.ExecStream),
		op.New(op.Spec{Name: "bash_output", Route: "POST /v1/bash/output", Tag: "bash", SDK: "bash.output", ReadOnly: true,
			Doc: "Read the output of a command from byte offsets. Pass the offsets of each reply to the next call, " +
				"so that no byte is lost or repeated. With wait the call returns when there is new output."}, s.Output),
		op.New(op.Spec{Name: "bash_write", Route: "POST /v1/bash/write", Tag: "bash", SDK: "bash.write",
			Doc: "Write to the standard input of a running command. The text is sent unchanged: include the newline " +
				"at the end of a line. With eof the input is closed afterwards."}, s.Write),
		op.New(op.Spec{Name: "bash_kill", Route: "POST /v1/bash/kill", Tag: "bash", SDK: "bash.kill", Destructive: true,
			Doc: "Send a signal to a command and to everything it started in its process group."}, s.Kill),
		op.New(op.Spec{Name: "bash_sessions", Access: op.AccessRead, Route: "GET /v1/bash/sessions", Tag: "bash",
			SDK: "bash.sessions", ReadOnly: true,
			Doc: "List the sessions, oldest first."}, s.Sessions),
		op.New(op.Spec{Name: "bash_create_session", Route: "POST /v1/bash/sessions/create", Tag: "bash", SDK: "bash.create_session",
			Doc: "Create a session that keeps a working directory and environment between commands. An existing " +
				"session is returned with the given directory and snapshot applied."}, s.CreateSession),
		op.New(op.Spec{Name: "bash_close_session", Route: "POST /v1/bash/sessions/{session_id}/close", Tag: "bash",
			SDK: "bash.close_session", Destructive: true,
			Doc: "Close a session: discard its output and kill the commands that still run in it."}, s.CloseSession),
	}
}

// Close ends all commands with their background processes, and discards all output.
func (s *Service) Close() error {
	s.end.Do(func() {
		s.sessions.Close()
		close(s.quit)
		s.tasks.Wait()
	})
	return nil
}

// stop ends the commands in parallel and returns when they have ended.
func stop(all []*command) {
	var wait sync.WaitGroup
	for _, c := range all {
		wait.Go(c.stop)
	}
	wait.Wait()
}
