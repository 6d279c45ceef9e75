package shell

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"syscall"
	"time"

	"github.com/cove-sandbox/cove/internal/op"
)

// writePatience is how long a program may take to read what is typed into it.
const writePatience = 5 * time.Second

// defaultWait is how long Wait waits when it is not told.
const defaultWait = 60

// ViewIn names the session.
type ViewIn struct {
	ID string `json:"id" doc:"Session to look at"`
}

// ViewResult is what a session shows.
type ViewResult struct {
	Output    string   `json:"output" doc:"What the running or last command printed; the screen, while a full-screen program runs"`
	SessionID string   `json:"session_id" doc:"The session"`
	Console   []Record `json:"console" nullable:"true" doc:"The commands so far, oldest first; the oldest are forgotten"`
	Status    string   `json:"status" enum:"running,completed,no_change_timeout,hard_timeout,terminated" doc:"How the running or last command stands"`
	Command   *string  `json:"command" doc:"The running or last command"`
	ExitCode  *int     `json:"exit_code" doc:"Exit code of the last command, when none runs"`
}

// View shows a session.
func (s *Service) View(_ context.Context, in ViewIn) (ViewResult, error) {
	ss, err := s.find(in.ID)
	if err != nil {
		return ViewResult{}, err
	}
	ss.mu.Lock()
	defer ss.mu.Unlock()
	r := ViewResult{SessionID: ss.id, Status: completed, Console: append([]Record{}, ss.records...)}
	if c := ss.current(); c != nil {
		r.Status, r.Command, r.Output = running, &c.text, ss.terminal.visible(c)
		r.Console = append(r.Console, Record{PS1: c.ps1, Command: c.text, Output: r.Output})
	} else if c := ss.last; c != nil {
		r.Status, r.Command, r.Output, r.ExitCode = c.status, &c.text, c.output, c.exit
	} else if t := ss.terminal; t != nil {
		r.Output = strings.TrimRight(strings.Join(t.screen.Screen(), "\n"), "\n")
	}
	return r, nil
}

// current is the command that runs, nil when none does. The lock is held.
func (ss *session) current() *command {
	if ss.terminal == nil {
		return nil
	}
	ss.terminal.settle()
	return ss.terminal.current
}

// state is the status of the running or last command.
func (ss *session) state() string {
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

// WaitIn says for which session and how long.
type WaitIn struct {
	ID             string `json:"id" doc:"Session to wait for"`
	Seconds        *int   `json:"seconds" doc:"Seconds to wait at most; 60 when missing"`
	MaxWaitSeconds *int   `json:"max_wait_seconds" doc:"Upper bound of seconds"`
}

// Status is how the running or last command stands.
type Status struct {
	Status string `json:"status" enum:"running,completed,no_change_timeout,hard_timeout,terminated" doc:"How the running or last command stands"`
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
	timer := time.NewTimer(seconds(float64(limit)))
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

// WriteIn is what to type.
type WriteIn struct {
	ID         string `json:"id" doc:"Session in which the program runs"`
	Input      string `json:"input" doc:"Text to type"`
	PressEnter bool   `json:"press_enter" doc:"Press Enter after it"`
}

// Write types into the running program.
func (s *Service) Write(_ context.Context, in WriteIn) (Status, error) {
	ss, err := s.find(in.ID)
	if err != nil {
		return Status{}, err
	}
	ss.mu.Lock()
	t, c := ss.terminal, ss.current()
	ss.mu.Unlock()
	if c == nil {
		return Status{}, op.Errorf(op.Conflict, "no command runs in session %q that could read this; start one with shell_exec", ss.id)
	}
	keys := in.Input
	if in.PressEnter {
		keys += "\r"
	}
	if keys != "" {
		if err := t.enter(keys, writePatience); errors.Is(err, errEnded) {
			return Status{}, op.Errorf(op.Conflict, "the shell of session %q has just ended; nothing was typed", ss.id)
		} else if err != nil {
			return Status{}, err
		}
	}
	return Status{ss.state()}, nil
}

// KillIn names the session.
type KillIn struct {
	ID string `json:"id" doc:"Session whose command to end"`
}

// KillResult is how the command ended.
type KillResult struct {
	Status     string `json:"status" enum:"running,completed,no_change_timeout,hard_timeout,terminated" doc:"How the command stands"`
	ExitCode   *int   `json:"exit_code" doc:"Its exit code"`
	ReturnCode *int   `json:"returncode" doc:"The same"`
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
		op.Say(ctx, "No command runs in session %s", ss.id)
		return KillResult{Status: completed}, nil
	case c.over():
		op.Say(ctx, "The command had ended already")
	default:
		t.end(c, terminated, []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGKILL})
		op.Say(ctx, "The command was ended")
	}
	ss.mu.Lock()
	defer ss.mu.Unlock()
	r := KillResult{Status: terminated, ExitCode: c.exit, ReturnCode: c.exit}
	if c.over() {
		r.Status = c.status
	}
	return r, nil
}

// endAfter ends a command when its hard timeout is over.
func (t *terminal) endAfter(c *command, d time.Duration) {
	s := t.ss.service
	t.ss.mu.Lock()
	defer t.ss.mu.Unlock()
	if c.over() {
		return
	}
	s.tasks.Add(1)
	c.limit = time.AfterFunc(d, func() {
		defer s.tasks.Done()
		t.end(c, hardTimeout, []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL})
	})
}

// A signal is sent repeats times, every step, before the next one is tried. A
// single one can be lost, since a program is deaf to it while it starts.
const (
	step    = 100 * time.Millisecond
	repeats = 5
)

// end ends a command, for the reason that becomes its status, and returns when it
// has ended. The signals go to the foreground group, one after the other, the last
// one again and again; a shell that does not come back to its prompt is killed.
func (t *terminal) end(c *command, reason string, signals []syscall.Signal) {
	t.ss.mu.Lock()
	if c.reason == "" {
		c.reason = reason
	}
	t.ss.mu.Unlock()
	for i := range (len(signals) + 2) * repeats {
		group := t.strike(signals[min(i/repeats, len(signals)-1)])
		select {
		case <-c.done:
			finishOff(group)
			return
		case <-t.done:
			finishOff(group)
			return
		case <-time.After(step):
		}
	}
	t.p.Signal(syscall.SIGKILL)
	select {
	case <-c.done:
	case <-t.done:
	}
}

// strike sends a signal to what runs, once, and tells to which group.
func (t *terminal) strike(sig syscall.Signal) (group int) {
	// First the shell: while it waits for a program it only takes note, and then
	// does not go on with the rest of a list or loop.
	t.p.Signal(syscall.SIGINT)
	group, err := t.signal(sig)
	switch {
	case group == 0 && sig == syscall.SIGTERM: // what it waits for; the shell itself ignores it
		t.p.Signal(sig)
	case errors.Is(err, syscall.EPERM):
		// It runs as another user, as below sudo; the terminal may still reach it.
		t.interrupt(step)
	case group != 0 && sig != syscall.SIGINT:
		t.signal(syscall.SIGCONT) // a stopped process cannot react
	}
	t.p.Signal(syscall.SIGCONT)
	return group
}

// finishOff kills what is left of a group whose leader has gone ahead. Its number
// cannot have become another's as long as it is found at every look.
func finishOff(group int) {
	for deadline := time.Now().Add(step); group != 0 && syscall.Kill(-group, 0) == nil; {
		if time.Now().After(deadline) {
			syscall.Kill(-group, syscall.SIGKILL)
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// TerminalURLIn names the session.
type TerminalURLIn struct {
	SessionID *string `query:"session_id" doc:"Session to show; a new one when missing"`
}

// TerminalURL is the address of the web terminal.
func (s *Service) TerminalURL(ctx context.Context, in TerminalURLIn) (string, error) {
	id := value(in.SessionID)
	if err := checkID(id); err != nil {
		return "", err
	}
	if id == "" {
		id = newID()
	}
	return op.CallOf(ctx).URL("http", "/terminal", url.Values{"session_id": {id}}.Encode()), nil
}
