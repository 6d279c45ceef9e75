package referee

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// sockets are the sockets of programs in a network with a route, such as that of a Pod. Init creates them and installs them in the
// programs, so that they are confined before a program has them:
//
//   - TCP sockets are bound to the loopback interface, which no unprivileged program can change. So connect may continue: even if
//     its arguments change afterwards, it reaches only the sandbox.
//   - Sockets for datagrams cannot have such a bond, because a message can name another interface. They use no gateway
//     (SO_DONTROUTE, which the filter protects), and init refuses messages to an address outside. A program that constructs its
//     messages for it can still reach hosts on the same link. Only a NetworkPolicy prevents that.
//
// Container runtimes refuse to copy descriptors of programs, so init keeps its own. A copy keeps a socket open that a program
// closes: init closes it when a call shows how the program uses the socket, or soon after the program has closed its own.
type sockets struct {
	addresses func() map[netip.Addr]bool // of the sandbox
	max       int                        // of copies

	mu        sync.Mutex
	all       map[uint64]*created // by inode
	connected map[uint64]uint64   // cookies of sockets that init has connected, by inode; some programs connect them again
	unused    chan struct{}       // closed when there are no copies; nil if there are none
}

// created is init's copy of a socket.
type created struct {
	fd       int
	tid      uint32 // the thread that has created it
	number   int    // its descriptor there; -1 until it is installed
	datagram bool
}

const (
	// maxCreated bounds the copies, and so does half of init's limit of files. Programs that have more unconnected sockets cannot
	// connect the others.
	maxCreated = 16 << 10
	// watchInterval is the time between checks for sockets that were closed unused.
	watchInterval = time.Second
	loopback      = "lo"
)

// newSockets returns an error if the kernel cannot confine sockets.
func newSockets() (*sockets, error) {
	fd, err := newConfined(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	// The kernel that knows this option can install descriptors as the result of a call.
	if _, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE); err != nil {
		return nil, fmt.Errorf("requires Linux 5.14: %w", err)
	}
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		return nil, err
	}
	return &sockets{all: map[uint64]*created{}, addresses: sync.OnceValue(addressesOf), max: int(min(maxCreated, files.Cur/2))}, nil
}

// newConfined creates a socket that cannot reach the outside.
func newConfined(domain, kind, protocol int) (int, error) {
	if base := kind & 0xf; base != unix.SOCK_STREAM && base != unix.SOCK_DGRAM {
		return -1, unix.EPERM
	}
	switch protocol {
	case 0, unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6:
	default: // others use several sockets, or their messages differ
		return -1, unix.EPROTONOSUPPORT
	}
	fd, err := unix.Socket(domain, kind|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return -1, err
	}
	stream := kind&0xf == unix.SOCK_STREAM
	if stream || domain == unix.AF_INET6 { // IPv6 has no SO_DONTROUTE
		err = unix.BindToDevice(fd, loopback)
	}
	if err == nil && !stream {
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DONTROUTE, 1)
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// confine decides on calls of a routed sandbox except connect.
func (o *outward) confine(c *call) {
	switch c.nr {
	case unix.SYS_SOCKET:
		if c.args[1]&0xf == unix.SOCK_DGRAM {
			o.openResolver()
		}
		o.sockets.create(c)
	case unix.SYS_BIND:
		o.sockets.purge() // the port may be that of a socket that was closed
		o.sockets.releaseDatagram(c)
		c.proceed()
	case unix.SYS_LISTEN:
		o.enter(c)
	case unix.SYS_SENDTO:
		to := c.address(c.args[4], c.args[5])
		if ip := to.Addr().Unmap(); ip.IsValid() && !ip.IsLoopback() && !ip.IsUnspecified() && !o.sockets.own(ip) {
			c.fail(unix.ENETUNREACH)
			return
		}
		o.sockets.releaseDatagram(c)
		c.proceed()
	default:
		c.proceed()
	}
}

// create executes the call socket with a confined socket.
func (l *sockets) create(c *call) {
	kind := int(int32(c.args[1]))
	fd, err := newConfined(int(int32(c.args[0])), kind, int(int32(c.args[2])))
	if err != nil {
		c.fail(errno(err))
		return
	}
	s := &created{fd: fd, tid: c.tid, number: -1, datagram: kind&0xf == unix.SOCK_DGRAM}
	inode := l.keep(s)
	number, err := c.install(fd, kind&unix.SOCK_CLOEXEC)
	if err != nil {
		c.fail(errno(err))
	}
	if inode == 0 {
		unix.Close(fd)
		return
	}
	if err != nil {
		l.drop(inode)
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	s.number = number
}

// install makes a call return a copy of a descriptor.
func (c *call) install(fd, flags int) (number int, err error) {
	request := struct {
		id                             uint64
		flags, source, number, newFlag uint32
	}{id: c.id, flags: unix.SECCOMP_ADDFD_FLAG_SEND, source: uint32(fd), newFlag: uint32(flags)}
	if e := c.listener.Control(func(listener uintptr) {
		n, _, errno := unix.Syscall(unix.SYS_IOCTL, listener, unix.SECCOMP_IOCTL_NOTIF_ADDFD, uintptr(unsafe.Pointer(&request)))
		if number = int(n); errno != 0 {
			err = errno
		}
	}); e != nil {
		return 0, e
	}
	return number, err
}

// keep adds a socket and returns its inode; 0 if there are too many.
func (l *sockets) keep(s *created) (inode uint64) {
	var st unix.Stat_t
	if unix.Fstat(s.fd, &st) != nil {
		return 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.all) >= l.max {
		if l.purgeLocked(); len(l.all) >= l.max {
			return 0
		}
	}
	l.all[st.Ino] = s
	if l.unused == nil {
		l.unused = make(chan struct{})
		go l.watch(l.unused)
	}
	return st.Ino
}

// watch closes copies of unused sockets until there are none.
func (l *sockets) watch(unused <-chan struct{}) {
	tick := time.NewTicker(watchInterval)
	defer tick.Stop()
	for {
		select {
		case <-unused:
			return
		case <-tick.C:
			l.purge()
		}
	}
}

// purge closes the copies of sockets that programs have closed.
func (l *sockets) purge() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.purgeLocked()
}

func (l *sockets) purgeLocked() {
	for inode, s := range l.all {
		if now, err := inodeOf(s.tid, s.number); s.number >= 0 && (err != nil || now != inode) {
			l.dropLocked(inode)
		}
	}
}

// copyOf copies the socket of a call.
func (l *sockets) copyOf(c *call) (fd int, inode uint64, err error) {
	if inode, err = inodeOf(c.tid, int(int32(c.args[0]))); err != nil {
		return -1, 0, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.all[inode]
	if s == nil {
		return -1, 0, unix.EBADF
	}
	fd, err = unix.FcntlInt(uintptr(s.fd), unix.F_DUPFD_CLOEXEC, 0)
	return fd, inode, err
}

// release closes init's copy of the socket of a call. It reports whether that is a TCP socket.
func (l *sockets) release(c *call) (stream bool) {
	return l.releaseIf(c, func(*created) bool { return true })
}

// releaseDatagram is release if it is a socket for datagrams.
func (l *sockets) releaseDatagram(c *call) {
	l.releaseIf(c, func(s *created) bool { return s.datagram })
}

func (l *sockets) releaseIf(c *call, condition func(*created) bool) (stream bool) {
	if l == nil {
		return false
	}
	inode, err := inodeOf(c.tid, int(int32(c.args[0])))
	if err != nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.all[inode]
	if s == nil {
		return false
	}
	if condition(s) {
		l.dropLocked(inode)
	}
	return !s.datagram
}

// finish closes init's copy of a socket that init has connected, before the program uses it.
func (l *sockets) finish(inode, cookie uint64) {
	if l == nil || inode == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dropLocked(inode)
	if l.connected == nil || len(l.connected) >= maxCreated { // most of those are never connected again
		l.connected = map[uint64]uint64{}
	}
	l.connected[inode] = cookie
}

// findConnected returns the cookie of the socket of a call if init has connected it.
func (l *sockets) findConnected(c *call) (cookie uint64, ok bool) {
	if l == nil {
		return 0, false
	}
	inode, err := inodeOf(c.tid, int(int32(c.args[0])))
	if err != nil {
		return 0, false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	cookie, ok = l.connected[inode]
	return cookie, ok
}

// disconnect notices that a connect may disconnect a socket.
func (l *sockets) disconnect(c *call) {
	if l == nil {
		return
	}
	if inode, err := inodeOf(c.tid, int(int32(c.args[0]))); err == nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.connected, inode)
	}
}

// drop closes init's copy of a socket.
func (l *sockets) drop(inode uint64) {
	if l == nil || inode == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dropLocked(inode)
}

func (l *sockets) dropLocked(inode uint64) {
	if s := l.all[inode]; s != nil {
		unix.Close(s.fd)
		delete(l.all, inode)
	}
	if len(l.all) == 0 && l.unused != nil {
		close(l.unused)
		l.unused = nil
	}
}

var errNoSocket = errors.New("not a socket")

// inodeOf returns the inode of a socket of a thread.
func inodeOf(tid uint32, number int) (uint64, error) {
	link, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", tid, number))
	if err != nil {
		return 0, err
	}
	text, ok := strings.CutPrefix(link, "socket:[")
	if !ok {
		return 0, errNoSocket
	}
	return strconv.ParseUint(strings.TrimSuffix(text, "]"), 10, 64)
}
