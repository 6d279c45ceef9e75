// Package bash runs commands as processes with pipes: every command is a new
// bash whose stdout and stderr stay apart and are kept as numbered bytes.
//
// It owns the sessions, which are only a directory and an environment, the
// commands started in them until they end, and the output that was kept of them,
// in memory and in nameless files below the state folder. It refuses to grow
// without bound: the oldest output and the oldest finished commands are forgotten,
// and whoever asks for them is told. What a command leaves running in the
// background belongs to the runner.
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
	State       string        // folder for output that memory does not hold
	MaxSessions int           // 0: 100
	Idle        time.Duration // how long an unused session is kept; 0: for ever
	Log         *slog.Logger
}

const (
	// maxRecords is how many commands a session remembers.
	maxRecords = 100
	// maxReply bounds what one reply holds of each stream.
	maxReply = 32 << 20
	// grace is the time between TERM and KILL when we end a command.
	grace = 500 * time.Millisecond
)

// Service runs commands.
type Service struct {
	Config
	base  pathname.Base
	store *store

	tasks sync.WaitGroup // commands that nobody has settled, and armed hard timeouts
	quit  chan struct{}  // closed when even what cannot be ended is given up

	mu       sync.Mutex // guards what follows and all sessions
	shell    string     // path of bash, once it was found
	sessions *session.Table[*Session]
	finished *list.List // of *command, the first to finish in front
	end      sync.Once
}

// New returns the service; nothing is started or touched before the first command.
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
		OnEnd:     s.forgetSession,
	})
	s.store = newStore(filepath.Join(c.State, "bash"), c.Log, s.reclaim)
	return s
}

// Ops lists the operations.
func (s *Service) Ops() []op.Op {
	exec := op.New(op.Spec{Name: "bash_exec", Route: "POST /v1/bash/exec", Tag: "bash", SDK: "bash.exec",
		Doc: "Run a command in a new bash process. The reply comes when the command exits, or earlier with " +
			"async_mode or timeout; a command that is still running continues, and bash_output reads the rest. " +
			"With stream=true the output is sent as events as it is written: start, stdout, stderr, then exit, or " +
			"timeout if the command continues."}, s.Exec)
	return []op.Op{
		op.WithStream[ExecIn, ExecEvent](exec, s.ExecStream),
		op.New(op.Spec{Name: "bash_output", Route: "POST /v1/bash/output", Tag: "bash", SDK: "bash.output", ReadOnly: true,
			Doc: "Read the output of a command from byte offsets. Pass the offsets of one reply to the next call, " +
				"and no byte is lost or repeated; with wait the reply comes when there is new output."}, s.Output),
		op.New(op.Spec{Name: "bash_write", Route: "POST /v1/bash/write", Tag: "bash", SDK: "bash.write",
			Doc: "Write to the standard input of a running command. The text is sent unchanged, so a line needs " +
				"its own newline. With eof the input is closed afterwards."}, s.Write),
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

// Close ends every command of every session, with what they left in the
// background, and forgets all output.
func (s *Service) Close() error {
	s.end.Do(func() {
		s.sessions.Close()
		close(s.quit)
		s.tasks.Wait()
	})
	return nil
}

// stop ends the commands, all at once, and returns when they are gone.
func stop(all []*command) {
	var wait sync.WaitGroup
	for _, c := range all {
		wait.Go(c.stop)
	}
	wait.Wait()
}
