package isolate

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// becomeUser makes the calling thread, and no other, the user of an ID with the capabilities that it has. The kernel
// counts inotify instances and watches of a user namespace against the user who created it: if that were the hub's, one
// sandbox could take those of all others, and of the machine. The thread must end afterwards.
func becomeUser(id uint32) error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	if err := unix.Capget(&header, &caps[0]); err != nil {
		return fmt.Errorf("read capabilities: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_KEEPCAPS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("keep capabilities: %w", err)
	}
	// Not unix.Setresuid, which is for all threads. It also makes us undumpable, so that nobody who has the ID can
	// read the memory that we share with init until it executes its program.
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(id), uintptr(id), uintptr(id)); errno != 0 {
		return fmt.Errorf("become user %d: %w", id, errno)
	}
	if err := unix.Capset(&header, &caps[0]); err != nil {
		return fmt.Errorf("keep capabilities: %w", err)
	}
	return nil
}
