package shell

import (
	"context"
	"strings"
	"syscall"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/guest/internal/session"
)

// maxCommand limits the length of a command.
const maxCommand = 4 << 20

// ExecIn is a command to run.
type ExecIn struct {
	ID               *string  `json:"id" doc:"Session to run in; created if it does not exist. Default: a new session"`
	ExecDir          *string  `json:"exec_dir" doc:"Directory to change to first; the session stays there"`
	Command          string   `json:"command" doc:"Command line for bash, of one or more lines"`
	AsyncMode        bool     `json:"async_mode" alias:"async" default:"false" doc:"Return immediately while the command runs"`
	Timeout          *float64 `json:"timeout" doc:"Maximum seconds to wait; the command then continues"`
	Strict           *bool    `json:"strict" doc:"Fail if exec_dir does not exist; by default the session's directory is used"`
	NoChangeTimeout  *int     `json:"no_change_timeout" doc:"Maximum seconds without output; 0: no limit. Default: the setting of the session"`
	HardTimeout      *float64 `json:"hard_timeout" doc:"Seconds until the command is killed. Default: 0, never"`
	PreserveSymlinks bool     `json:"preserve_symlinks" nullable:"true" default:"false" doc:"Do not resolve symbolic links in exec_dir"`
	Truncate         bool     `json:"truncate" default:"true" doc:"Omit the middle of output longer than 30,000 characters"`
}

// CommandResult is the state of a command.
type CommandResult struct {
	SessionID string   `json:"session_id" doc:"ID of the session"`
	Command   string   `json:"command" doc:"The command line"`
	Status    string   `json:"status" enum:"running,completed,no_change_timeout,hard_timeout,terminated" doc:"State of the command"`
	Output    *string  `json:"output" doc:"Output so far, or the screen of a full-screen program"`
	Console   []Record `json:"console" nullable:"true" doc:"The command on the console"`
	ExitCode  *int     `json:"exit_code" doc:"Exit code; null while the command runs"`
}

// Exec runs a command and waits for its end or the first timeout of the request.
func (s *Service) Exec(ctx context.Context, in ExecIn) (CommandResult, error) {
	b, err := s.begin(ctx, in, 0)
	if err != nil {
		return CommandResult{}, err
	}
	status := running
	if !in.AsyncMode {
		if status, err = b.t.wait(ctx, b.c, b.began, b.limits); err != nil {
			b.cancel(ctx)
			return CommandResult{}, err
		}
	}
	return b.t.result(ctx, b.c, status), nil
}

// begun is a command that a shell has accepted.
type begun struct {
	t      *terminal
	c      *command
	began  time.Time
	limits limits
}

// begin starts a command in its session. Its output is kept for this number of followers.
func (s *Service) begin(ctx context.Context, in ExecIn, followers int) (begun, error) {
	c, limits, err := s.prepare(ctx, in)
	if err != nil {
		return begun{}, err
	}
	c.followers = followers
	ss, made, err := s.obtain(op.Value(in.ID), false)
	if err != nil {
		return begun{}, err
	}
	if made && c.dir != "" {
		ss.mu.Lock()
		ss.start = resolveLinks(c.dir, in.PreserveSymlinks)
		ss.mu.Unlock()
	}
	began := time.Now()
	t, err := ss.run(ctx, c)
	if err != nil {
		return begun{}, err
	}
	if limits.hard > 0 {
		t.armHardTimeout(c, limits.hard-time.Since(began))
	}
	return begun{t, c, began, limits}, nil
}

// cancel ends the command if the canceled call owns it.
func (b begun) cancel(ctx context.Context) {
	if ctx.Err() != nil && op.CallOf(ctx).Owned {
		b.t.endCommand(b.c, terminated, []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL})
	}
}

// limits are the timeouts of a command. No timeout is 0, but negative for soft, and negative
// for noChange means the setting of the session.
type limits struct{ soft, hard, noChange time.Duration }

// prepare validates a request.
func (s *Service) prepare(ctx context.Context, in ExecIn) (*command, limits, error) {
	l := limits{soft: -1, noChange: -1}
	switch {
	case strings.IndexByte(in.Command, 0) >= 0:
		return nil, l, op.Errorf(op.Invalid, "the command contains a zero byte; remove it")
	case len(in.Command) > maxCommand:
		return nil, l, op.Errorf(op.TooLarge,
			"the command is too long (%d bytes; the limit is %d); write it to a file and run that", len(in.Command), maxCommand)
	case in.Timeout != nil && *in.Timeout < 0, in.HardTimeout != nil && *in.HardTimeout < 0,
		in.NoChangeTimeout != nil && *in.NoChangeTimeout < 0:
		return nil, l, op.Errorf(op.Invalid, "a timeout must not be negative")
	}
	if in.Timeout != nil {
		l.soft = op.Seconds(*in.Timeout)
	}
	if in.HardTimeout != nil {
		l.hard = op.Seconds(*in.HardTimeout)
	}
	if in.NoChangeTimeout != nil {
		l.noChange = op.Seconds(float64(*in.NoChangeTimeout))
	}
	c := newCommand(in.Command)
	c.full = !in.Truncate
	dir, err := session.Directory(s.base, "exec_dir", in.ExecDir)
	strict := in.Strict != nil && *in.Strict
	if err != nil && strict {
		return nil, l, err
	} else if err != nil {
		op.Hint(ctx, "%v; the session stays in its directory", err)
	}
	c.dir = dir
	if strict {
		c.flags += " strict"
	}
	if in.PreserveSymlinks {
		c.flags += " logical"
	}
	return c, l, nil
}

// wait waits for the end of a command or a timeout, and returns the status.
func (t *terminal) wait(ctx context.Context, c *command, began time.Time, l limits) (status string, err error) {
	if l.noChange < 0 {
		t.ss.mu.Lock()
		l.noChange = t.ss.noChange
		t.ss.mu.Unlock()
	}
	var soft <-chan time.Time
	if l.soft >= 0 {
		timer := time.NewTimer(l.soft - time.Since(began))
		defer timer.Stop()
		soft = timer.C
	}
	for {
		stalled, left := t.outputStalled(l.noChange)
		select {
		case <-c.done:
			return c.status, nil
		default:
			if stalled {
				return noChange, nil
			}
		}
		select {
		case <-c.done:
			return c.status, nil
		case <-soft:
			return running, nil
		case <-left:
		case <-ctx.Done():
			return "", canceled(ctx)
		}
	}
}

// outputStalled reports whether there was no output for the limit, and if not, when to check
// again.
func (t *terminal) outputStalled(limit time.Duration) (bool, <-chan time.Time) {
	if limit <= 0 {
		return false, nil
	}
	t.ss.mu.Lock()
	defer t.ss.mu.Unlock()
	left := limit - time.Since(t.changed)
	return left <= 0, time.After(left)
}

// result describes a command with this status.
func (t *terminal) result(ctx context.Context, c *command, status string) CommandResult {
	t.ss.mu.Lock()
	defer t.ss.mu.Unlock()
	if c.hasEnded() {
		status = c.status
	}
	r := CommandResult{SessionID: t.ss.ID, Command: c.text, Status: status, ExitCode: c.exit}
	output := c.output
	switch {
	case !c.hasEnded():
		output = t.display.visibleOutput(c)
	case c.full:
		output = c.all
		c.all = ""
	}
	r.Output = &output
	r.Console = []Record{{PS1: c.ps1, Command: c.text, Output: output}}
	switch {
	case status == running, status == noChange:
		op.Hint(ctx, "The command is still running: shell_view shows its output, shell_wait waits for it, "+
			"shell_write types into it, shell_kill ends it")
	case status == terminated && t.ss.terminal != t:
		op.Hint(ctx, "The command ended the shell with exit code %d; the next command in session %s starts a new one", *c.exit, t.ss.ID)
	}
	return r
}
