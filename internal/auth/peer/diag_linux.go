package peer

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// User returns the user ID that owns the other end of a TCP connection within this machine.
func User(c net.Conn) (int, error) {
	from, to, err := ends(c)
	if err != nil {
		return 0, err
	}
	return find(from, to, false)
}

// Server returns the user ID of the server that a client is connected to within this machine:
// the owner of the accepted socket or, before it is accepted, of the listening socket. For a
// Unix socket it is the user of the program that listens.
func Server(c net.Conn) (int, error) {
	if u, ok := c.(*net.UnixConn); ok {
		return listenerOf(u)
	}
	server, own, err := ends(c)
	if err != nil {
		return 0, err
	}
	uid, err := find(server, own, false)
	if !errors.Is(err, ErrUnknown) {
		return uid, err
	}
	if uid, err = find(server, own, true); !errors.Is(err, ErrUnknown) {
		return uid, err
	}
	return find(server, own, false) // the server accepted it and then stopped listening
}

// ends returns the other end of a connection, and our own.
func ends(c net.Conn) (other, own netip.AddrPort, err error) {
	local, ok1 := c.LocalAddr().(*net.TCPAddr)
	remote, ok2 := c.RemoteAddr().(*net.TCPAddr)
	if !ok1 || !ok2 {
		return other, own, fmt.Errorf("find the user of a %s connection: only TCP is supported", c.LocalAddr().Network())
	}
	return plain(remote), plain(local), nil
}

// listenerOf returns the user that listened on the Unix socket of a connection.
func listenerOf(c *net.UnixConn) (int, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	var failed error
	err = raw.Control(func(fd uintptr) { cred, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err = errors.Join(err, failed); err != nil {
		return 0, fmt.Errorf("find the user of a unix connection: %w", err)
	}
	return int(cred.Uid), nil
}

// find returns the user of the socket from that is connected to the socket to or, if listens is
// set, of the socket that listens for such connections.
func find(from, to netip.AddrPort, listens bool) (int, error) {
	uid, err := queryKernel(from, to, listens)
	if err != nil && !errors.Is(err, ErrUnknown) {
		uid, err = readTables(from, to, listens)
	}
	return uid, err
}

func plain(a *net.TCPAddr) netip.AddrPort {
	p := a.AddrPort()
	return netip.AddrPortFrom(p.Addr().Unmap().WithZone(""), p.Port())
}

// The parts of the kernel's interface that unix lacks (linux/sock_diag.h, linux/inet_diag.h).
const (
	sockDiagByFamily = 20
	requestSize      = unix.SizeofNlMsghdr + 56
	replySize        = unix.SizeofNlMsghdr + 72
	stateAt          = unix.SizeofNlMsghdr + 1
	uidAt, inodeAt   = unix.SizeofNlMsghdr + 64, unix.SizeofNlMsghdr + 68
	stateListen      = 10 // TCP_LISTEN
)

// queryKernel requests the one socket with these addresses from the kernel.
func queryKernel(from, to netip.AddrPort, listens bool) (int, error) {
	if listens {
		to = netip.AddrPortFrom(netip.IPv4Unspecified(), 0) // no connection: the kernel looks for a listener
		if from.Addr().Is6() {
			to = netip.AddrPortFrom(netip.IPv6Unspecified(), 0)
		}
	}
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_INET_DIAG)
	if err != nil {
		return 0, fmt.Errorf("open a sock_diag socket: %w", err)
	}
	defer unix.Close(fd)
	// The kernel replies before the request returns; the timeout is a precaution.
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 1}); err != nil {
		return 0, fmt.Errorf("limit the wait for sock_diag: %w", err)
	}
	if err := unix.Sendto(fd, request(from, to), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return 0, fmt.Errorf("send a sock_diag request: %w", err)
	}
	b := make([]byte, 4096)
	n, _, err := unix.Recvfrom(fd, b, 0)
	if err != nil {
		return 0, fmt.Errorf("read the sock_diag reply: %w", err)
	}
	return parse(b[:n], listens)
}

func request(from, to netip.AddrPort) []byte {
	native := binary.NativeEndian
	b := make([]byte, 0, requestSize)
	b = native.AppendUint32(b, requestSize)
	b = native.AppendUint16(b, sockDiagByFamily)
	b = native.AppendUint16(b, unix.NLM_F_REQUEST)
	b = append(b, make([]byte, 8)...) // sequence and port: there is one request on the socket
	family := byte(unix.AF_INET)
	if from.Addr().Is6() {
		family = unix.AF_INET6
	}
	b = append(b, family, unix.IPPROTO_TCP, 0, 0)
	b = native.AppendUint32(b, ^uint32(0)) // in any state
	b = binary.BigEndian.AppendUint16(b, from.Port())
	b = binary.BigEndian.AppendUint16(b, to.Port())
	for _, a := range []netip.Addr{from.Addr(), to.Addr()} {
		var field [16]byte
		copy(field[:], a.AsSlice())
		b = append(b, field[:]...)
	}
	b = native.AppendUint32(b, 0)             // on any interface
	return native.AppendUint64(b, ^uint64(0)) // without a cookie
}

func parse(b []byte, listens bool) (int, error) {
	native := binary.NativeEndian
	if len(b) < unix.SizeofNlMsghdr+4 {
		return 0, errors.New("the sock_diag reply is too short")
	}
	if native.Uint16(b[4:]) == unix.NLMSG_ERROR {
		if errno := unix.Errno(-int32(native.Uint32(b[unix.SizeofNlMsghdr:]))); errno != unix.ENOENT {
			return 0, fmt.Errorf("sock_diag: %w", errno)
		}
		return 0, ErrUnknown
	}
	if native.Uint16(b[4:]) != sockDiagByFamily || len(b) < replySize {
		return 0, errors.New("unexpected sock_diag reply")
	}
	// Without such a connection the kernel returns the socket that listens at the address, which
	// does not belong to the owner of the connection.
	if (b[stateAt] == stateListen) != listens {
		return 0, ErrUnknown
	}
	// A socket that its process has closed has no inode, and its user reads as root.
	if native.Uint32(b[inodeAt:]) == 0 {
		return 0, ErrUnknown
	}
	return int(native.Uint32(b[uidAt:])), nil
}

// readTables finds the socket in the tables of the process's network namespace.
func readTables(from, to netip.AddrPort, listens bool) (int, error) {
	for _, name := range []string{"tcp", "tcp6"} {
		as6 := name == "tcp6"
		match := func(f []string) bool { return f[1] == cell(from, as6) && f[2] == cell(to, as6) && f[3] != "0A" }
		if listens {
			match = func(f []string) bool {
				return f[3] == "0A" && (f[1] == cell(from, as6) || f[1] == cell(wildcard(from, as6), as6))
			}
		}
		f, err := os.Open("/proc/thread-self/net/" + name)
		if err != nil {
			return 0, fmt.Errorf("find the user of a connection: %w", err)
		}
		uid, err := scan(f, match)
		f.Close()
		if !errors.Is(err, ErrUnknown) {
			return uid, err
		}
	}
	return 0, ErrUnknown
}

// wildcard returns the address of a socket that listens on all addresses.
func wildcard(a netip.AddrPort, as6 bool) netip.AddrPort {
	if as6 {
		return netip.AddrPortFrom(netip.IPv6Unspecified(), a.Port())
	}
	return netip.AddrPortFrom(netip.IPv4Unspecified(), a.Port())
}

// scan reads a table: number, local and remote address, state, queues, timers, retransmits,
// user, timeout, inode.
func scan(table io.Reader, match func(fields []string) bool) (int, error) {
	lines := bufio.NewScanner(table)
	for lines.Scan() {
		f := strings.Fields(lines.Text())
		if len(f) < 10 || f[9] == "0" || !match(f) {
			continue
		}
		uid, err := strconv.ParseUint(f[7], 10, 32)
		if err != nil {
			return 0, fmt.Errorf("read the user in a table of connections: %w", err)
		}
		return int(uid), nil
	}
	if err := lines.Err(); err != nil {
		return 0, fmt.Errorf("read a table of connections: %w", err)
	}
	return 0, ErrUnknown
}

// cell formats an address as the tables do: words of four bytes as native numbers.
func cell(a netip.AddrPort, as6 bool) string {
	b := a.Addr().AsSlice()
	if as6 {
		all := a.Addr().As16()
		b = all[:]
	}
	var text strings.Builder
	for ; len(b) >= 4; b = b[4:] {
		fmt.Fprintf(&text, "%08X", binary.NativeEndian.Uint32(b))
	}
	return text.String() + ":" + strings.ToUpper(hex.EncodeToString(binary.BigEndian.AppendUint16(nil, a.Port())))
}
