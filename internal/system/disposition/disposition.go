// Package disposition resets what programs inherit about signals: that a signal is ignored or
// blocked. A server started with nohup, in the background of a script or by a program that
// blocks signals would otherwise start programs that hang-up and Ctrl-C cannot end.
package disposition

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// last is the number of the last signal.
const last = 64

// maskSize is the kernel's size of a set of signals.
const maskSize = last / 8

// action is the kernel's struct sigaction, which starts with the handler on all architectures.
// The zero value is the default.
type action struct {
	handler uintptr
	rest    [7]uintptr
}

// ignore is SIG_IGN.
const ignore = 1

// Reset lets programs that the calling thread starts handle all signals: none is ignored or
// blocked. The caller has locked its goroutine to the thread. This process itself still
// ignores the signals that it was started to ignore, such as a hang-up.
func Reset() error {
	for s := syscall.Signal(1); s <= last; s++ {
		if !ignored(s) {
			continue
		}
		// Handled signals get their default when a program starts. These are handled and dropped.
		signal.Notify(make(chan os.Signal, 1), s)
		if ignored(s) { // the Go runtime does not handle it
			sigaction(s, &action{}, nil) //nolint:errcheck // it succeeded for the query above
		}
	}
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, new(unix.Sigset_t), nil); err != nil {
		return fmt.Errorf("unblock signals: %w", err)
	}
	return nil
}

func ignored(s syscall.Signal) bool {
	var current action
	return sigaction(s, nil, &current) == 0 && current.handler == ignore
}

func sigaction(s syscall.Signal, set, old *action) syscall.Errno {
	_, _, errno := syscall.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(s), uintptr(unsafe.Pointer(set)),
		uintptr(unsafe.Pointer(old)), maskSize, 0, 0)
	return errno
}
