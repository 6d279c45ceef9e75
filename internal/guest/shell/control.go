package shell

import (
	"context"
	"errors"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/guest/internal/session"
)

// writePatience is how long a program may take to read typed input.
const writePatience = 5 * time.Second

// defaultWait is the default timeout of Wait in seconds.
const defaultWait = 60

// ViewIn selects a session.
type ViewIn struct {
	ID string `json:"id" doc:"ID of the session"`
}

// ViewResult is the output of a session.
type ViewResult struct {
	Output    string   `json:"output" doc:"Output of the running or last command, or the screen of a full-screen program"`
	SessionID string   `json:"session_id" doc:"ID of the session"`
	Console   []Record `json:"console" nullable:"true" doc:"Recent commands, oldest first"`
	Status    string   `json:"status" enum:"running,completed,no_change_timeout,hard_timeout,terminated" doc:"State of the latest command"`
	Command   *string  `json:"command" doc:"The running or last command"`
	ExitCode  *int     `json:"exit_code" doc:"Exit code of the last command; null while one runs"`
}

// View shows a session.
func (s *Service) View(_ context.Context, in ViewIn) (ViewResult, error) {
	ss, err := s.find(in.ID)
	if err != nil {
		return ViewResult{}, err
	}
	ss.mu.Lock()
	defer ss.mu.Unlock()
	r := ViewResult{SessionID: ss.ID, Status: completed, Console: append([]Record{}, ss.records...)}
	if c := ss.current(); c != nil {
		r.Status, r.Command, r.Output = running, &c.text, ss.terminal.display.visibleOutput(c)
		r.Console = append(r.Console, Record{PS1: c.ps1, Command: c.text, Output: r.Output})
	} else if c := ss.last; c != nil {
		r.Status, r.Command, r.Output, r.ExitCode = c.status, &c.text, c.output, c.exit
	} else if t := ss.terminal; t != nil {
		r.Output = strings.TrimRight(strings.Join(t.display.screen.Screen(), "\n"), "\n")
	}
	return r, nil
}

// current returns the running command, or nil. The lock is held.
func (ss *Session) current() *command {
	if ss.terminal == nil {
		return nil
	}
	ss.terminal.resolveDoubt()
	return ss.terminal.current
}

// state returns the status of the latest command.
func (ss *Session) state() string {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	switch {
	case ss.current() != nil:
		return running
	case ss.last != nil:
		return ss.last.status
	}
	return completed
}

// WaitIn selects a session and sets the timeout.
type WaitIn struct {
	ID             string `json:"id" doc:"ID of the session"`
	Seconds        *int   `json:"seconds" doc:"Maximum number of seconds to wait. Default: 60"`
	MaxWaitSeconds *int   `json:"max_wait_seconds" doc:"Upper limit for seconds"`
}

// Status is the state of the latest command.
type Status struct {
	Status string `json:"status" enum:"running,completed,no_change_timeout,hard_timeout,terminated" doc:"State of the latest command"`
}

// Wait waits for the end of the running command.
func (s *Service) Wait(ctx context.Context, in WaitIn) (Status, error) {
	ss, err := s.find(in.ID)
	if err != nil {
		return Status{}, err
	}
	limit := defaultWait
	switch {
	case in.Seconds != nil && in.MaxWaitSeconds != nil:
		limit = min(*in.Seconds, *in.MaxWaitSeconds)
	case in.Seconds != nil:
		limit = *in.Seconds
	case in.MaxWaitSeconds != nil:
		limit = *in.MaxWaitSeconds
	}
	ss.mu.Lock()
	c := ss.current()
	ss.mu.Unlock()
	if c == nil {
		return Status{ss.state()}, nil
	}
	timer := time.NewTimer(op.Seconds(float64(limit)))
	defer timer.Stop()
	select {
	case <-c.done:
		return Status{c.status}, nil
	case <-timer.C:
		return Status{running}, nil
	case <-ctx.Done():
		return Status{}, canceled(ctx)
	}
}

// WriteIn is text to type.
type WriteIn struct {
	ID         string `json:"id" doc:"ID of the session"`
	Input      string `json:"input" doc:"Text to type"`
	PressEnter bool   `json:"press_enter" doc:"Press Enter after the text"`
}

// Write types text into the running program.
func (s *Service) Write(_ context.Context, in WriteIn) (Status, error) {
	ss, err := s.find(in.ID)
	if err != nil {
		return Status{}, err
	}
	ss.mu.Lock()
	t, c := ss.terminal, ss.current()
	ss.mu.Unlock()
	if c == nil {
		return Status{}, op.Errorf(op.Conflict, "no command is running in session %q; start one with shell_exec", ss.ID)
	}
	keys := in.Input
	if in.PressEnter {
		keys += "\r"
	}
	if keys != "" {
		if err := t.typeInput(keys, writePatience); errors.Is(err, errEnded) {
			return Status{}, op.Errorf(op.Conflict, "the shell of session %q has exited; no input was typed", ss.ID)
		} else if err != nil {
			return Status{}, err
		}
	}
	return Status{ss.state()}, nil
}

// KillIn selects a session.
type KillIn struct {
	ID string `json:"id" doc:"ID of the session"`
}

// KillResult is the state of the command after Kill.
type KillResult struct {
	Status     string `json:"status" enum:"running,completed,no_change_timeout,hard_timeout,terminated" doc:"State of the command"`
	ExitCode   *int   `json:"exit_code" doc:"Exit code of the command"`
	ReturnCode *int   `json:"returncode" doc:"Same as exit_code"`
}

// Kill ends the running command.
func (s *Service) Kill(ctx context.Context, in KillIn) (KillResult, error) {
	ss, err := s.find(in.ID)
	if err != nil {
		return KillResult{}, err
	}
	ss.mu.Lock()
	t, c := ss.terminal, ss.current()
	if c == nil {
		c = ss.last
	}
	ss.mu.Unlock()
	switch {
	case c == nil:
		op.Say(ctx, "No command is running in session %s", ss.ID)
		return KillResult{Status: completed}, nil
	case c.hasEnded():
		op.Say(ctx, "The command has already ended")
	default:
		t.endCommand(c, terminated, []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGKILL})
		op.Say(ctx, "The command was terminated")
	}
	ss.mu.Lock()
	defer ss.mu.Unlock()
	r := KillResult{Status: terminated, ExitCode: c.exit, ReturnCode: c.exit}
	if c.hasEnded() {
		r.Status = c.status
	}
	return r, nil
}

// armHardTimeout starts the timer that ends a command after its hard timeout.
func (t *terminal) armHardTimeout(c *command, d time.Duration) {
	s := t.ss.service
	t.ss.mu.Lock()
	defer t.ss.mu.Unlock()
	if c.hasEnded() {
		return
	}
	s.tasks.Add(1)
	c.limit = time.AfterFunc(d, func() {
		defer s.tasks.Done()
		t.endCommand(c, hardTimeout, []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL})
	})
}

// Each signal is sent several times before the next one, because a starting program may miss
// it.
const (
	step    = 100 * time.Millisecond
	repeats = 5
)

// endCommand ends a command and returns when it has ended. The reason becomes its status. It
// sends the signals to the foreground group one after the other. A shell that does not
// return to its prompt is killed. Finally it kills the remaining processes of the groups.
func (t *terminal) endCommand(c *command, reason string, signals []syscall.Signal) {
	t.ss.mu.Lock()
	if c.reason == "" {
		c.reason = reason
	}
	t.ss.mu.Unlock()
	var groups []int // signaled groups that may still have processes, even after the shell has continued
	defer func() {
		for _, group := range groups {
			killGroup(group)
		}
	}()
	for i := range (len(signals) + 2) * repeats {
		groups = slices.DeleteFunc(groups, func(group int) bool { return syscall.Kill(-group, 0) != nil })
		sig := signals[min(i/repeats, len(signals)-1)]
		group := t.sendSignals(sig)
		if group == 0 && i >= repeats {
			// A shell that is interrupted between two parts of a pipeline takes the terminal
			// back and waits for the part that it has started.
			group = t.p.SignalNewest(sig, c.made)
		}
		if group != 0 && !slices.Contains(groups, group) {
			groups = append(groups, group)
		}
		select {
		case <-c.done:
			return
		case <-t.done:
			return
		case <-time.After(step):
		}
	}
	_ = t.p.Signal(syscall.SIGKILL)
	select {
	case <-c.done:
	case <-t.done:
	}
}

// sendSignals sends each signal once and returns the signaled group.
func (t *terminal) sendSignals(sig syscall.Signal) (group int) {
	// Signal the shell first. While it waits for a program it defers the signal, and then
	// skips the rest of a list or loop.
	_ = t.p.Signal(syscall.SIGINT)
	group, err := t.signal(sig)
	switch {
	case group == 0 && sig == syscall.SIGTERM: // for programs in the shell's group; the shell ignores it
		_ = t.p.Signal(sig)
	case errors.Is(err, syscall.EPERM):
		// The program runs as another user, for example under sudo. Ctrl-C may reach it.
		_ = t.input.interrupt(step)
	case group != 0 && sig != syscall.SIGINT:
		_, _ = t.signal(syscall.SIGCONT) // a stopped process cannot react
	}
	_ = t.p.Signal(syscall.SIGCONT)
	return group
}

// killGroup kills the remaining processes of a group whose leader has exited. The ID cannot
// be reused while the group exists.
func killGroup(group int) {
	for deadline := time.Now().Add(step); syscall.Kill(-group, 0) == nil; {
		if time.Now().After(deadline) {
			_ = syscall.Kill(-group, syscall.SIGKILL)
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// TerminalURLIn selects a session.
type TerminalURLIn struct {
	SessionID *string `query:"session_id" doc:"Session to show. Default: a new session"`
}

// TerminalURL returns the URL of the web terminal.
func (s *Service) TerminalURL(ctx context.Context, in TerminalURLIn) (string, error) {
	id := op.Value(in.SessionID)
	if err := session.CheckID("session_id", id); err != nil {
		return "", err
	}
	if id == "" {
		id = newID()
	}
	return op.CallOf(ctx).URL("http", "/terminal", url.Values{"session_id": {id}}.Encode()), nil
}
