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
	// ErrClosed says that the kernel was closed by us.
	ErrClosed = errors.New("the kernel was closed")
	// ErrUnresponsive says that the kernel lives but neither ends its cell nor
	// lets itself be interrupted. Close it.
	ErrUnresponsive = errors.New("the kernel does not respond")

	errSevered = errors.New("the kernel closed its connection and was killed")
)

// ExitError says how a kernel ended that nobody told to.
type ExitError struct {
	Exit proc.Exit
	// Report is the last that the process wrote outside the protocol: the reason
	// of a failed start, or the stack of a crash.
	Report string
}

func (e *ExitError) Error() string {
	var b strings.Builder
	b.WriteString("the kernel died: ")
	switch sig := e.Exit.Signal; {
	case sig == syscall.SIGKILL:
		b.WriteString("killed by SIGKILL; if nobody sent it, the process ran out of memory")
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
