package referee

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// destination reads the address of connect from the caller's memory.
func (c *call) destination() netip.AddrPort { return c.address(c.args[1], c.args[2]) }

// address reads an address from the caller's memory. It returns an invalid address for all families but IPv4 and IPv6, and if it
// cannot be read: then the kernel reports the error.
func (c *call) address(at, length uint64) netip.AddrPort {
	buf := make([]byte, unix.SizeofSockaddrInet6)
	size := min(uint64(uint32(length)), uint64(len(buf)))
	if size < unix.SizeofSockaddrInet4 {
		return netip.AddrPort{}
	}
	n, err := c.read(buf[:size], at)
	if err != nil || !c.waits() {
		return netip.AddrPort{}
	}
	port := binary.BigEndian.Uint16(buf[2:])
	switch family := binary.NativeEndian.Uint16(buf); {
	case family == unix.AF_INET && n >= unix.SizeofSockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(buf[4:8])), port)
	case family == unix.AF_INET6 && n >= unix.SizeofSockaddrInet6-4: // the scope is optional
		return netip.AddrPortFrom(netip.AddrFrom16([16]byte(buf[8:24])), port)
	}
	return netip.AddrPort{}
}

// read reads from the caller's memory.
func (c *call) read(buf []byte, at uint64) (int, error) {
	local := []unix.Iovec{{Base: &buf[0]}}
	local[0].SetLen(len(buf))
	n, err := unix.ProcessVMReadv(int(c.tid), local, []unix.RemoteIovec{{Base: uintptr(at), Len: len(buf)}}, 0)
	if err != unix.EPERM && err != unix.ENOSYS {
		return n, err
	}
	// Some container runtimes refuse that call, but not the file.
	fd, err := unix.Open(fmt.Sprintf("/proc/%d/mem", c.tid), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	return unix.Pread(fd, buf, int64(at))
}

// program returns the name of the calling thread, which it can change.
func (c *call) program() string {
	name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", c.tid))
	return strings.TrimSpace(string(name))
}

// tcpClosed is the state of a TCP socket that neither listens nor is connected.
const tcpClosed = 7

// socket is a copy of a descriptor of a caller. It must be closed soon: the program's poller reports events of a socket that
// the program has closed as long as there is a copy.
type socket struct {
	fd, domain, kind, protocol int
	flags                      int    // of the open file
	cookie                     uint64 // identifies the socket
	inode                      uint64 // of a socket that init has created
	nonblocking, only6, closed bool
	// modes is held while the flags or the state differ from what the program expects, and while they are read: a program
	// can repeat a call before init has finished the first.
	modes *sync.Mutex
}

// socket copies the socket of connect.
func (c *call) socket() (*socket, error) {
	s := &socket{modes: c.modes}
	var err error
	if s.fd, s.inode, err = c.descriptor(); err != nil {
		return nil, err
	}
	if err := s.inspect(); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// descriptor copies the descriptor of a call. It returns its inode if init has created it.
func (c *call) descriptor() (fd int, inode uint64, err error) {
	if c.sockets != nil {
		if fd, inode, err = c.sockets.copyOf(c); err == nil {
			return fd, inode, nil
		}
	}
	// The kernel before 6.9 copies only descriptors of the main thread. A thread with separate descriptors
	// then gets an error, or the connection of another of its program's sockets.
	pidfd, err := unix.PidfdOpen(int(c.tid), unix.O_EXCL) // PIDFD_THREAD
	if errors.Is(err, unix.EINVAL) {
		pidfd, err = unix.PidfdOpen(c.process(), 0)
	}
	if err != nil {
		return -1, 0, err
	}
	defer unix.Close(pidfd)
	fd, err = unix.PidfdGetfd(pidfd, int(int32(c.args[0])), 0)
	return fd, 0, err
}

// sameSocket copies the socket of connect again. The program may have closed it, and reused its number.
func (c *call) sameSocket(cookie uint64) (*socket, error) {
	s, err := c.socket()
	if err == nil && s.cookie != cookie {
		s.close()
		err = unix.EBADF
	}
	if err != nil {
		return nil, err
	}
	return s, nil
}

// process returns the process of the calling thread.
func (c *call) process() int {
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", c.tid))
	_, after, _ := strings.Cut(string(status), "\nTgid:")
	line, _, _ := strings.Cut(after, "\n")
	pid, _ := strconv.Atoi(strings.TrimSpace(line)) // 0 if the thread has ended
	return pid
}

func (s *socket) inspect() (err error) {
	for _, o := range []struct {
		name int
		to   *int
	}{{unix.SO_DOMAIN, &s.domain}, {unix.SO_TYPE, &s.kind}, {unix.SO_PROTOCOL, &s.protocol}} {
		if *o.to, err = unix.GetsockoptInt(s.fd, unix.SOL_SOCKET, o.name); err != nil {
			return err
		}
	}
	if s.cookie, err = unix.GetsockoptUint64(s.fd, unix.SOL_SOCKET, unix.SO_COOKIE); err != nil {
		return err
	}
	s.modes.Lock()
	s.flags, err = unix.FcntlInt(uintptr(s.fd), unix.F_GETFL, 0)
	s.modes.Unlock()
	if err != nil {
		return err
	}
	s.nonblocking = s.flags&unix.O_NONBLOCK != 0
	if s.domain == unix.AF_INET6 {
		only6, err := unix.GetsockoptInt(s.fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY)
		if err != nil {
			return err
		}
		s.only6 = only6 != 0
	}
	if s.kind == unix.SOCK_STREAM && s.protocol == unix.IPPROTO_TCP {
		info, err := unix.GetsockoptTCPInfo(s.fd, unix.IPPROTO_TCP, unix.TCP_INFO)
		if err != nil {
			return err
		}
		s.closed = info.State == tcpClosed
	}
	return nil
}

// inNetwork reports whether the socket is in the network that a cookie identifies.
func (s *socket) inNetwork(cookie uint64) bool {
	own, err := unix.GetsockoptUint64(s.fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	return err != nil || own == cookie // Linux 5.14; without it, connecting fails
}

func (s *socket) close() { unix.Close(s.fd) }
