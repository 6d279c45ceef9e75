package seccomp

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Referee decides, in init, on the calls that the filter does not decide on: it permits
// routing netlink only to processes in the sandbox's own network. A process that created a
// network has the capability to configure it.
//
// The decision depends on nothing that the caller can change meanwhile: the caller waits in
// the call, and only a thread itself can change its network.
type Referee struct {
	listener *os.File
	network  string // of init, as /proc names it
}

// The kernel's struct seccomp_notif and seccomp_notif_resp.
type (
	notification struct {
		id    uint64
		tid   uint32
		flags uint32
		nr    int32
		arch  uint32
		ip    uint64
		args  [6]uint64
	}
	response struct {
		id    uint64
		val   int64
		errno int32
		flags uint32
	}
)

// NewReferee returns the referee for the descriptor of Install, which it owns.
func NewReferee(listener int) (*Referee, error) {
	network, err := networkOf("self")
	if err != nil {
		return nil, fmt.Errorf("read the network namespace of init: %w", err)
	}
	// Non-blocking, so that Go's poller waits for it instead of a separate thread.
	if err := unix.SetNonblock(listener, true); err != nil {
		return nil, fmt.Errorf("listen for calls: %w", err)
	}
	unix.CloseOnExec(listener)
	return &Referee{os.NewFile(uintptr(listener), "seccomp"), network}, nil
}

func networkOf(tid string) (string, error) { return os.Readlink("/proc/" + tid + "/ns/net") }

// Run answers until the sandbox ends.
func (r *Referee) Run() {
	raw, err := r.listener.SyscallConn()
	if err != nil {
		return
	}
	for {
		if raw.Read(r.answer) != nil {
			return
		}
	}
}

// answer decides on one call; done is false if no call waits.
func (r *Referee) answer(fd uintptr) (done bool) {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	if n, err := unix.Poll(p, 0); err != nil || n == 0 {
		return false
	}
	var call notification
	if ioctl(fd, unix.SECCOMP_IOCTL_NOTIF_RECV, unsafe.Pointer(&call)) != nil {
		return true // the caller was killed
	}
	reply := response{id: call.id, errno: -int32(unix.EPERM)}
	network, err := networkOf(fmt.Sprint(call.tid))
	// If the caller still waits, its thread ID was not reused: the network is the caller's.
	if err == nil && network == r.network && ioctl(fd, unix.SECCOMP_IOCTL_NOTIF_ID_VALID, unsafe.Pointer(&call.id)) == nil {
		reply = response{id: call.id, flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE}
	}
	ioctl(fd, unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(&reply))
	return true
}

func ioctl(fd, request uintptr, arg unsafe.Pointer) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, fd, request, uintptr(arg)); errno != 0 {
		return errno
	}
	return nil
}
