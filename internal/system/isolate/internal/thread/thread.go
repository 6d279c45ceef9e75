// Package thread runs code on operating system threads that have other credentials or
// namespaces than the rest of the process.
package thread

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// Run runs f on a thread that ends soon after f. It is never the main thread, which
// cannot end and would keep what f changed.
func Run(f func()) {
	ran := make(chan struct{})
	go func() {
		defer close(ran)
		runtime.LockOSThread()
		if unix.Gettid() != unix.Getpid() {
			f()
			return // still locked: the thread ends
		}
		Run(f) // on another thread, because this goroutine holds the main thread
		runtime.UnlockOSThread()
	}()
	<-ran
}

// BecomeUser changes the user of the calling thread, and of no other, and keeps its
// capabilities. The kernel counts inotify instances and watches of a user namespace against
// the user who created it: with the hub's user, one sandbox could exhaust those of all
// others and of the machine. The thread must end afterwards.
func BecomeUser(id uint32) error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	if err := unix.Capget(&header, &caps[0]); err != nil {
		return fmt.Errorf("read capabilities: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_KEEPCAPS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("keep capabilities: %w", err)
	}
	// Not unix.Setresuid, which is for all threads. The call also makes the process undumpable, so that no
	// process with that ID can read the memory that is shared with init until init executes its program.
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(id), uintptr(id), uintptr(id)); errno != 0 {
		return fmt.Errorf("become user %d: %w", id, errno)
	}
	if err := unix.Capset(&header, &caps[0]); err != nil {
		return fmt.Errorf("keep capabilities: %w", err)
	}
	return nil
}
