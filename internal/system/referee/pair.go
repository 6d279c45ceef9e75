package referee

import (
	"errors"
	"net/netip"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A program's socket is connected to one of init over the loopback interface, and init passes that to the hub. So the
// program keeps its socket, with all options, and with the registrations of its pollers.

// localTimeout bounds connections over the loopback interface, which need microseconds unless the program prevents them.
const localTimeout = time.Second

const maxTTL = 255

// end is init's end of a connection while it waits for the program's.
type end struct {
	fd   int
	addr netip.AddrPort
}

// hold makes the socket connect to an end that does not answer: it remains connecting until meet or abort. From is its address.
func (s *socket) hold(to netip.Addr) (e *end, from netip.AddrPort, err error) {
	if e, err = listen(s, to); err != nil {
		return nil, from, err
	}
	if err = s.connect(e); errors.Is(err, unix.EINPROGRESS) {
		from, err = localAddress(s.fd)
	}
	if err != nil {
		e.close()
		return nil, from, err
	}
	return e, from, nil
}

// listen creates an end that a socket can connect to.
func listen(s *socket, to netip.Addr) (*end, error) {
	domain, addr := unix.AF_INET, netip.AddrFrom4([4]byte{127, 0, 0, 1})
	if s.domain == unix.AF_INET6 && (s.only6 || !to.Is4In6()) {
		domain, addr = unix.AF_INET6, netip.IPv6Loopback()
	}
	e, err := bind(domain, netip.AddrPortFrom(addr, 0))
	if err != nil && domain == unix.AF_INET6 && !s.only6 { // a kernel without IPv6 addresses
		domain = unix.AF_INET
		e, err = bind(domain, netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), 0))
	}
	if err != nil {
		return nil, err
	}
	// The kernel drops packets with a smaller time to live, which is 64 unless the program changes it.
	if domain == unix.AF_INET {
		err = unix.SetsockoptInt(e.fd, unix.IPPROTO_IP, unix.IP_MINTTL, maxTTL)
	} else {
		err = unix.SetsockoptInt(e.fd, unix.IPPROTO_IPV6, unix.IPV6_MINHOPCOUNT, maxTTL)
	}
	if err == nil {
		err = unix.Listen(e.fd, 1)
	}
	if err != nil {
		e.close()
		return nil, err
	}
	return e, nil
}

// bind creates a socket at an address.
func bind(domain int, addr netip.AddrPort) (*end, error) {
	fd, err := unix.Socket(domain, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	e := &end{fd: fd}
	// Two sockets of init may have the same address; see meet.
	if err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1); err == nil {
		if err = unix.Bind(fd, sockaddr(addr, domain)); err == nil {
			e.addr, err = localAddress(fd)
		}
	}
	if err != nil {
		e.close()
		return nil, err
	}
	return e, nil
}

func (e *end) close() { unix.Close(e.fd) }

// connect starts to connect the program's socket to an end. It does not wait, also if the socket blocks.
func (s *socket) connect(e *end) error {
	s.modes.Lock()
	defer s.modes.Unlock()
	return s.start(e)
}

// confirm makes the call of a socket that is connected return. First the kernel must know that connect has returned, because
// the program may use the socket at once. It returns false if a signal has interrupted the call since then, so that
// the kernel would report a repeated one as an error.
func (s *socket) confirm(c *call, e *end) (returned bool) {
	if !c.waits() {
		return true // its repetition is another call, which the kernel can execute
	}
	_ = s.start(e)
	return c.fail(0)
}

// start is connect while modes is held.
func (s *socket) start(e *end) error {
	// With this option the kernel would connect when the program sends data.
	_ = unix.SetsockoptInt(s.fd, unix.IPPROTO_TCP, unix.TCP_FASTOPEN_CONNECT, 0)
	if s.nonblocking {
		return unix.Connect(s.fd, sockaddr(e.addr, s.domain))
	}
	if _, err := unix.FcntlInt(uintptr(s.fd), unix.F_SETFL, s.flags|unix.O_NONBLOCK); err != nil {
		return err
	}
	err := unix.Connect(s.fd, sockaddr(e.addr, s.domain))
	if _, restore := unix.FcntlInt(uintptr(s.fd), unix.F_SETFL, s.flags); restore != nil {
		return restore
	}
	return err
}

// meet connects an end to the program's socket, which is still connecting to it: TCP accepts two connects that cross.
func (e *end) meet(from netip.AddrPort) (fd int, err error) {
	domain := unix.AF_INET
	if e.addr.Addr().Is6() {
		domain = unix.AF_INET6
	}
	peer, err := bind(domain, e.addr)
	if err != nil {
		return -1, err
	}
	err = unix.Connect(peer.fd, sockaddr(from, domain))
	if errors.Is(err, unix.EINPROGRESS) {
		if err = wait(peer.fd, unix.POLLOUT, localTimeout); err == nil {
			var code int
			if code, err = unix.GetsockoptInt(peer.fd, unix.SOL_SOCKET, unix.SO_ERROR); err == nil && code != 0 {
				err = unix.Errno(code)
			}
		}
	}
	if err != nil {
		peer.close()
		return -1, err
	}
	return peer.fd, nil
}

// abort makes a program's socket, which is connecting to an end that was closed, fail at once: it connects again, and is
// refused. Otherwise the kernel would be refused when it repeats the first packet, after a second. A program that reads the
// error between both calls sees a reset connection.
func (s *socket) abort(e *end) {
	s.disconnect()
	_ = s.connect(e)
}

// reset makes a program's socket usable for another connect, without an error.
func (s *socket) reset() {
	s.disconnect()
	_, _ = unix.GetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_ERROR)
}

func (s *socket) disconnect() {
	var unspecified unix.RawSockaddrInet4 // of AF_UNSPEC
	_, _, _ = unix.Syscall(unix.SYS_CONNECT, uintptr(s.fd), uintptr(unsafe.Pointer(&unspecified)), unsafe.Sizeof(unspecified))
}

// wait waits for an event of a descriptor.
func wait(fd int, event int16, limit time.Duration) error {
	p := []unix.PollFd{{Fd: int32(fd), Events: event}}
	for deadline := time.Now().Add(limit); ; {
		n, err := unix.Poll(p, int(max(0, time.Until(deadline).Milliseconds())))
		switch {
		case err == unix.EINTR:
		case err != nil:
			return err
		case n == 0:
			return unix.ETIMEDOUT
		default:
			return nil
		}
	}
}

// sockaddr returns an address for a socket of a domain. IPv6 sockets reach IPv4 addresses in mapped form.
func sockaddr(a netip.AddrPort, domain int) unix.Sockaddr {
	if domain == unix.AF_INET {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().Unmap().As4()}
	}
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}

// localAddress returns the address of a socket.
func localAddress(fd int) (netip.AddrPort, error) {
	sa, err := unix.Getsockname(fd)
	if err != nil {
		return netip.AddrPort{}, err
	}
	return addressOf(sa), nil
}

func addressOf(sa unix.Sockaddr) netip.AddrPort {
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(sa.Addr).Unmap(), uint16(sa.Port))
	}
	return netip.AddrPort{}
}
