// Package referee decides, in init, on the calls that the filter of system calls passes to it. It owns the descriptor of
// these calls.
//
// It permits routing netlink only to processes in the sandbox's own network: a process that created a network has the
// capability to configure it. It connects programs that do not use a proxy to the egress proxy of the hub, and answers their
// DNS queries; see outward.
//
// A caller waits until init replies, but its other threads can change its memory and descriptors meanwhile. So each decision
// is either about arguments in registers, or executed by init itself with what it has read. Init lets a call continue only
// if every outcome is harmless: the sandbox has no route, so a connect that continues reaches only the sandbox itself. In a Pod,
// which has a route, init confines all sockets of programs; see sockets.
package referee

import (
	"context"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/network/outbound"
)

// Config configures a Referee.
type Config struct {
	Listener int // the descriptor of the calls, of seccomp.Install; the Referee owns it
	// Egress is the socket of the hub's egress proxy; empty if calls of connect are not passed.
	Egress string
	// Copies says that the egress proxy takes no descriptors; see outbound.Hub.
	Copies bool
	// Open opens connections to the egress proxy of a sandbox whose network has a route. Calls of seccomp.PodNotifications are
	// passed; see sockets.
	Open func(context.Context) (net.Conn, error)
}

// Referee decides on calls.
type Referee struct {
	listener *os.File
	network  string   // of init, as /proc names it
	outward  *outward // nil without egress proxy
	modes    sync.Mutex
}

// maxCalls bounds the calls that wait for a decision. More are not received until others are decided.
const maxCalls = 1024

// New returns a referee. It decides on no call before Run.
func New(cfg Config) (*Referee, error) {
	network, err := networkOf("self")
	if err != nil {
		return nil, fmt.Errorf("read the network namespace of init: %w", err)
	}
	// Non-blocking, so that Go's poller waits for it instead of a separate thread.
	if err := unix.SetNonblock(cfg.Listener, true); err != nil {
		return nil, fmt.Errorf("listen for calls: %w", err)
	}
	unix.CloseOnExec(cfg.Listener)
	r := &Referee{network: network}
	switch {
	case cfg.Egress != "":
		r.outward = newOutward(outbound.Hub{Path: cfg.Egress, Patience: patience, Copies: cfg.Copies})
	case cfg.Open != nil:
		r.outward = newOutward(outbound.Hub{Open: cfg.Open, Copies: true})
		if r.outward.sockets, err = newSockets(); err != nil {
			return nil, fmt.Errorf("confine sockets to this sandbox: %w", err)
		}
	}
	r.listener = os.NewFile(uintptr(cfg.Listener), "seccomp")
	return r, nil
}

func networkOf(tid string) (string, error) { return os.Readlink("/proc/" + tid + "/ns/net") }

// Run answers until the sandbox ends.
func (r *Referee) Run() {
	raw, err := r.listener.SyscallConn()
	if err != nil {
		return
	}
	slots := make(chan struct{}, maxCalls)
	for {
		slots <- struct{}{}
		c := &call{listener: raw, modes: &r.modes}
		if r.outward != nil {
			c.sockets = r.outward.sockets
		}
		if raw.Read(c.receive) != nil {
			return
		}
		go func() {
			defer func() { <-slots }()
			r.decide(c)
		}()
	}
}

func (r *Referee) decide(c *call) {
	switch {
	case c.id == 0: // the caller was killed
	case c.nr == unix.SYS_CONNECT && r.outward != nil:
		r.outward.connect(c)
	case c.sockets != nil:
		r.outward.confine(c)
	case c.nr == unix.SYS_SOCKET && int32(c.args[0]) != unix.AF_NETLINK && r.outward != nil:
		r.outward.openResolver()
		c.proceed()
	default:
		r.decideNetlink(c)
	}
}

// decideNetlink permits routing netlink in init's network. Only a thread itself can change its network.
func (r *Referee) decideNetlink(c *call) {
	network, err := networkOf(fmt.Sprint(c.tid))
	// If the caller still waits, its thread ID was not reused: the network is the caller's.
	if err == nil && network == r.network && c.waits() {
		c.proceed()
		return
	}
	c.fail(unix.EPERM)
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

// call is a call that waits for a decision.
type call struct {
	notification
	listener syscall.RawConn
	modes    *sync.Mutex // see socket
	sockets  *sockets    // nil without a route
}

// receive receives a call; done is false if none waits.
func (c *call) receive(fd uintptr) (done bool) {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	if n, err := unix.Poll(p, 0); err != nil || n == 0 {
		return false
	}
	if ioctl(fd, unix.SECCOMP_IOCTL_NOTIF_RECV, unsafe.Pointer(&c.notification)) != nil {
		c.notification = notification{}
	}
	return true
}

// waits reports whether the caller still waits: its thread ID was not reused.
func (c *call) waits() bool {
	return c.control(unix.SECCOMP_IOCTL_NOTIF_ID_VALID, unsafe.Pointer(&c.id)) == nil
}

// proceed lets the kernel execute the call.
func (c *call) proceed() { c.reply(response{flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE}) }

// fail makes the call return an error, or success if it is 0. It reports whether the caller received it: a signal can
// interrupt the call, which is then repeated.
func (c *call) fail(errno syscall.Errno) bool { return c.reply(response{errno: -int32(errno)}) }

func (c *call) reply(r response) bool {
	r.id = c.id
	return c.control(unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(&r)) == nil
}

func (c *call) control(request uintptr, arg unsafe.Pointer) (err error) {
	if e := c.listener.Control(func(fd uintptr) { err = ioctl(fd, request, arg) }); e != nil {
		return e
	}
	return err
}

func ioctl(fd, request uintptr, arg unsafe.Pointer) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, fd, request, uintptr(arg)); errno != 0 {
		return errno
	}
	return nil
}
