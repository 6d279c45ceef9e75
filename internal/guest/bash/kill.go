package bash

import (
	"context"
	"errors"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/api/op"
)

// killTime is how long Kill waits for the command to end, so that the reply has its status.
const killTime = 250 * time.Millisecond

// KillIn selects a command and a signal.
type KillIn struct {
	SessionID string  `json:"session_id" doc:"Session of the command"`
	CommandID *string `json:"command_id" doc:"Command to signal; it may have exited. Default: the running command that was started last"`
	Signal    string  `json:"signal" default:"SIGTERM" doc:"Signal name, with or without SIG, or number"`
}

// KillResult is the state of the command after the signal.
type KillResult struct {
	SessionID string `json:"session_id"`
	CommandID string `json:"command_id"`
	Signal    string `json:"signal"`
	Status    string `json:"status" enum:"pending,running,completed,timed_out,killed"`
	ExitCode  *int   `json:"exit_code"`
}

// Kill sends a signal to a command's process group.
func (s *Service) Kill(ctx context.Context, in KillIn) (KillResult, error) {
	sig, err := signalOf(in.Signal)
	if err != nil {
		return KillResult{}, err
	}
	c, err := s.target(in.SessionID, in.CommandID)
	if err != nil {
		return KillResult{}, err
	}
	if err := c.signal(sig); err != nil {
		return KillResult{}, err
	}
	timer := time.NewTimer(killTime)
	defer timer.Stop()
	select {
	case <-c.ended:
	case <-timer.C:
	case <-ctx.Done():
	}
	i := c.info()
	op.Say(ctx, "Sent %s to command %s; its status is %s", unix.SignalName(sig), c.id, i.Status)
	return KillResult{SessionID: in.SessionID, CommandID: c.id, Signal: unix.SignalName(sig), Status: i.Status, ExitCode: i.ExitCode}, nil
}

// signal sends a signal to the process group, even after the command has ended.
func (c *command) signal(sig syscall.Signal) error {
	c.mu.Lock()
	p := c.p
	c.sent |= 1 << sig
	c.mu.Unlock()
	if p == nil {
		return op.Errorf(op.Conflict, "command %s is still starting; try again", c.id)
	}
	switch err := p.Signal(sig); {
	case errors.Is(err, os.ErrProcessDone):
		return op.Errorf(op.Conflict, "command %s has exited, and no process of its group is left", c.id)
	case errors.Is(err, os.ErrPermission):
		return op.Errorf(op.Denied, "command %s runs as another user; use sudo kill", c.id)
	default:
		return err
	}
}

// signalOf parses the name or number of a signal.
func signalOf(name string) (syscall.Signal, error) {
	text := strings.ToUpper(strings.TrimSpace(name))
	if n, err := strconv.Atoi(text); err == nil {
		if sig := syscall.Signal(n); unix.SignalName(sig) != "" {
			return sig, nil
		}
	} else if sig := unix.SignalNum("SIG" + strings.TrimPrefix(text, "SIG")); sig != 0 {
		return sig, nil
	}
	return 0, op.Errorf(op.Invalid, "no such signal: %q; use a name such as SIGTERM, SIGINT, SIGKILL, SIGHUP, SIGSTOP or SIGCONT", name)
}
