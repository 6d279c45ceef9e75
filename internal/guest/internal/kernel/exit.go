package kernel

import (
	"errors"
	"fmt"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/system/proc"
)

var (
	// ErrClosed is the error of a kernel after Close.
	ErrClosed = errors.New("the kernel was closed")
	// ErrUnresponsive says that the kernel runs but neither ends its cell nor reacts to an
	// interrupt. The caller must close it.
	ErrUnresponsive = errors.New("the kernel does not respond")

	errDisconnected = errors.New("the kernel closed its connection and was killed")
)

// ExitError is the error of a kernel that exited unexpectedly.
type ExitError struct {
	Exit proc.Exit
	// Report is the end of the process's own stdout and stderr: the reason of a failed
	// start, or the stack of a crash.
	Report string
}

func (e *ExitError) Error() string {
	var b strings.Builder
	b.WriteString("the kernel died: ")
	switch sig := e.Exit.Signal; {
	case sig == syscall.SIGKILL:
		b.WriteString("killed by SIGKILL; unless it was sent deliberately, the process ran out of memory")
	case sig != 0:
		fmt.Fprintf(&b, "killed by %s", unix.SignalName(sig))
	default:
		fmt.Fprintf(&b, "it exited with code %d", e.Exit.Code)
	}
	if e.Report != "" {
		b.WriteString("\n" + e.Report)
	}
	return b.String()
}

// exitError describes the end of the process.
func (k *Kernel) exitError() error {
	report := strings.ToValidUTF8(string(k.report.Tail()), "\ufffd")
	return &ExitError{Exit: k.process.Exit(), Report: strings.TrimSpace(stripEscapes(report))}
}
