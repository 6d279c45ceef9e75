package shell

import (
	"context"
	"math"
	"strings"
	"time"

	"github.com/cove-sandbox/cove/internal/op"
)

// maxCommand bounds a command's length.
const maxCommand = 4 << 20

// ExecIn is a command to run.
type ExecIn struct {
	ID               *string  `json:"id" doc:"Session to run it in; one that does not exist is made, and a new one when missing"`
	ExecDir          *string  `json:"exec_dir" doc:"Directory to change to before; the session stays there"`
	Command          string   `json:"command" doc:"Command line for bash, of one or more lines"`
	AsyncMode        bool     `json:"async_mode" default:"false" doc:"Answer at once, while the command runs"`
	Timeout          *float64 `json:"timeout" doc:"Seconds after which the answer comes even if the command still runs; it goes on"`
	Strict           *bool    `json:"strict" doc:"Refuse to run when exec_dir does not exist, instead of staying in the session's directory"`
	NoChangeTimeout  *int     `json:"no_change_timeout" doc:"Seconds without output after which the answer comes; the command goes on. The session's own (120) when missing, 0 for never"`
	HardTimeout      *float64 `json:"hard_timeout" doc:"Seconds after which the command and its process group are ended; 0 or none for never"`
	PreserveSymlinks bool     `json:"preserve_symlinks" nullable:"true" default:"false" doc:"Keep symbolic links in exec_dir instead of following them"`
	Truncate         bool     `json:"truncate" default:"true" doc:"Leave out the middle of output over 30,000 characters"`
}

// CommandResult is how far a command has got.
type CommandResult struct {
	SessionID string   `json:"session_id" doc:"Session it runs in"`
	Command   string   `json:"command" doc:"What was run"`
	Status    string   `json:"status" enum:"running,completed,no_change_timeout,hard_timeout,terminated" doc:"How far it is: running and no_change_timeout say that it goes on; terminated, that it was ended or ended the shell"`
	Output    *string  `json:"output" doc:"What it printed so far; the screen, while a full-screen program runs"`
	Console   []Record `json:"console" nullable:"true" doc:"The command as the console shows it"`
	ExitCode  *int     `json:"exit_code" doc:"Its exit code once it has ended"`
}

// Exec runs a command and waits for its end as long as it was told to.
func (s *Service) Exec(ctx context.Context, in ExecIn) (CommandResult, error) {
	c, limits, err := s.prepare(ctx, in)
	if err != nil {
		return CommandResult{}, err
	}
	ss, made, err := s.obtain(value(in.ID), false)
	if err != nil {
		return CommandResult{}, err
	}
	if made && c.dir != "" {
		ss.mu.Lock()
		ss.start = physical(c.dir, in.PreserveSymlinks)
		ss.mu.Unlock()
	}
	began := time.Now()
	t, err := ss.run(ctx, c)
	if err != nil {
		return CommandResult{}, err
	}
	if limits.hard > 0 {
		t.endAfter(c, limits.hard-time.Since(began))
	}
	status := running
	if !in.AsyncMode {
		if status, err = t.wait(ctx, c, began, limits); err != nil {
			return CommandResult{}, err
		}
	}
	return t.result(ctx, c, status), nil
}

// limits are how long to wait for a command; 0 for ever, and for soft below 0.
type limits struct{ soft, hard, noChange time.Duration }

// prepare checks a request.
func (s *Service) prepare(ctx context.Context, in ExecIn) (*command, limits, error) {
	l := limits{soft: -1, noChange: -1}
	switch {
	case strings.IndexByte(in.Command, 0) >= 0:
		return nil, l, op.Errorf(op.Invalid, "a command cannot hold a zero byte")
	case len(in.Command) > maxCommand:
		return nil, l, op.Errorf(op.TooLarge, "the command has %d bytes; the most is %d: write it to a file and run that", len(in.Command), maxCommand)
	case in.Timeout != nil && *in.Timeout < 0, in.HardTimeout != nil && *in.HardTimeout < 0, in.NoChangeTimeout != nil && *in.NoChangeTimeout < 0:
		return nil, l, op.Errorf(op.Invalid, "a timeout cannot be negative")
	}
	if in.Timeout != nil {
		l.soft = seconds(*in.Timeout)
	}
	if in.HardTimeout != nil {
		l.hard = seconds(*in.HardTimeout)
	}
	if in.NoChangeTimeout != nil {
		l.noChange = seconds(float64(*in.NoChangeTimeout))
	}
	c := newCommand(in.Command)
	c.full = !in.Truncate
	dir, err := s.directory(in.ExecDir)
	strict := in.Strict != nil && *in.Strict
	if err != nil && strict {
		return nil, l, err
	} else if err != nil {
		op.Hint(ctx, "%v; the session's directory was kept", err)
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

func value(p *string) string {
	if p == nil {
		return ""
	}
	return *p
}

// seconds is a number of seconds as a duration, at most the longest one.
func seconds(n float64) time.Duration {
	if n > math.MaxInt64/float64(time.Second) {
		return math.MaxInt64
	}
	return time.Duration(n * float64(time.Second))
}

// wait waits for the end of a command and tells how it stands.
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
		still, left := t.still(l.noChange)
		select {
		case <-c.done:
			return c.status, nil
		default:
			if still {
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

// still tells whether nothing was printed for that long, and else when to ask again.
func (t *terminal) still(limit time.Duration) (bool, <-chan time.Time) {
	if limit <= 0 {
		return false, nil
	}
	t.ss.mu.Lock()
	defer t.ss.mu.Unlock()
	left := limit - time.Since(t.changed)
	return left <= 0, time.After(left)
}

// result describes a command that stands as status says.
func (t *terminal) result(ctx context.Context, c *command, status string) CommandResult {
	t.ss.mu.Lock()
	defer t.ss.mu.Unlock()
	if c.over() {
		status = c.status
	}
	r := CommandResult{SessionID: t.ss.id, Command: c.text, Status: status, ExitCode: c.exit}
	output := c.output
	switch {
	case !c.over():
		output = t.visible(c)
	case c.full:
		output = c.all
		c.all = ""
	}
	r.Output = &output
	r.Console = []Record{{PS1: c.ps1, Command: c.text, Output: output}}
	switch {
	case status == running, status == noChange:
		op.Hint(ctx, "The command goes on: shell_view shows its output, shell_wait waits for its end, shell_write types into it, shell_kill ends it")
	case status == terminated && t.ss.terminal != t:
		op.Hint(ctx, "The shell ended with the command, with exit code %d; the next command in session %s starts a new one", *c.exit, t.ss.id)
	}
	return r
}

// visible is what a running command shows: its text so far, or the screen of a
// full-screen program. The lock is held.
func (t *terminal) visible(c *command) string {
	switch {
	case t.screen.Alt():
		return strings.TrimRight(strings.Join(t.screen.Screen(), "\n"), "\n")
	case !c.hasBegun():
		return ""
	case c.full:
		return allOf(t.screen.Text())
	}
	return shorten(t.screen.Text(), maxOutput)
}
