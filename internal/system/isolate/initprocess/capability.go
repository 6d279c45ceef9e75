package initprocess

import (
	"errors"
	"fmt"
	"slices"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// kept lists the capabilities that a root process inside may have. All are limited to
// the sandbox's own user namespace, and none allows mounting, tracing, creating
// devices, configuring networks or administration. gvisor has the same list.
var kept = []uintptr{
	unix.CAP_CHOWN, unix.CAP_DAC_OVERRIDE, unix.CAP_FOWNER, unix.CAP_FSETID, unix.CAP_KILL, unix.CAP_SETGID,
	unix.CAP_SETUID, unix.CAP_SETPCAP, unix.CAP_NET_BIND_SERVICE, unix.CAP_SYS_CHROOT, unix.CAP_SETFCAP,
}

// initKept lists the capabilities of init itself: it kills processes inside, connects to the
// server, whichever user runs it, and reads the network namespace, memory and sockets of processes (see package referee).
var initKept = []uintptr{unix.CAP_KILL, unix.CAP_DAC_OVERRIDE, unix.CAP_SYS_PTRACE}

// dropCapabilities limits the children of the calling thread to kept, and the thread itself
// to kept and initKept.
func dropCapabilities() error {
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return fmt.Errorf("clear ambient capabilities: %w", err)
	}
	for c := uintptr(0); ; c++ {
		in, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, c, 0, 0, 0)
		if err != nil {
			break // unknown to this kernel
		}
		if in == 0 || slices.Contains(kept, c) {
			continue
		}
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err != nil {
			return fmt.Errorf("drop capability %d: %w", c, err)
		}
	}
	return setCapabilities(append(initKept, kept...), false)
}

// setCapabilities limits the calling thread, or all threads, to the given capabilities.
func setCapabilities(caps []uintptr, all bool) error {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var have, data [2]unix.CapUserData
	if err := unix.Capget(&hdr, &have[0]); err != nil {
		return fmt.Errorf("read capabilities: %w", err)
	}
	for _, c := range caps {
		data[c/32].Permitted |= 1 << (c % 32) & have[c/32].Permitted
	}
	for i := range data {
		data[i].Effective = data[i].Permitted
	}
	var errno syscall.Errno
	if all {
		// Only a program without cgo can do this for its other threads.
		_, _, errno = syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&hdr)), uintptr(unsafe.Pointer(&data[0])), 0)
	} else {
		_, _, errno = syscall.RawSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&hdr)), uintptr(unsafe.Pointer(&data[0])), 0)
	}
	if errno != 0 {
		return fmt.Errorf("set capabilities: %w", explainCgo(errno))
	}
	return nil
}

// explainCgo explains why a call for all threads is refused.
func explainCgo(errno syscall.Errno) error {
	if errno == syscall.ENOTSUP {
		return errors.New("this program was built with cgo; build it with CGO_ENABLED=0")
	}
	return errno
}
