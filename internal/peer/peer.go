// Package peer finds out which local user is at the other end of a loopback connection.
//
// It asks the kernel (sock_diag) and, where netlink is not available, reads the kernel's
// table of connections. It owns nothing. It reports a user only while that user's socket is
// open: the kernel attributes what remains of a closed socket to root.
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

// ErrUnknown means that the kernel knows no open socket of this network namespace at the
// other end.
var ErrUnknown = errors.New("the other end is no open socket on this machine, or belongs to another network namespace")

// User returns the user ID that owns the other end of a TCP connection within this machine.
func User(c net.Conn) (int, error) {
	local, ok1 := c.LocalAddr().(*net.TCPAddr)
	remote, ok2 := c.RemoteAddr().(*net.TCPAddr)
	if !ok1 || !ok2 {
		return 0, fmt.Errorf("find the user of a %s connection: only TCP is supported", c.LocalAddr().Network())
	}
	from, to := plain(remote), plain(local)
	uid, err := ask(from, to)
	if err != nil && !errors.Is(err, ErrUnknown) {
		uid, err = look(from, to)
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
	uidAt, inodeAt   = unix.SizeofNlMsghdr + 64, unix.SizeofNlMsghdr + 68
)

// ask asks the kernel for the one socket with these addresses.
func ask(from, to netip.AddrPort) (int, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_INET_DIAG)
	if err != nil {
		return 0, fmt.Errorf("open a sock_diag socket: %w", err)
	}
	defer unix.Close(fd)
	// The kernel replies before the request returns; the limit is for a broken one.
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
	return parse(b[:n])
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
	return native.AppendUint64(b, ^uint64(0)) // without a cookie from before
}

func parse(b []byte) (int, error) {
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
	// A socket that its process has closed has no inode, and its user reads as root.
	if native.Uint32(b[inodeAt:]) == 0 {
		return 0, ErrUnknown
	}
	return int(native.Uint32(b[uidAt:])), nil
}

// look finds the socket in the tables of the process's network namespace.
func look(from, to netip.AddrPort) (int, error) {
	for _, name := range []string{"tcp", "tcp6"} {
		f, err := os.Open("/proc/thread-self/net/" + name)
		if err != nil {
			return 0, fmt.Errorf("find the user of a connection: %w", err)
		}
		uid, err := scan(f, cell(from, name == "tcp6"), cell(to, name == "tcp6"))
		f.Close()
		if !errors.Is(err, ErrUnknown) {
			return uid, err
		}
	}
	return 0, ErrUnknown
}

// scan reads a table: number, local and remote address, state, queues, timers, retransmits,
// user, timeout, inode.
func scan(table io.Reader, from, to string) (int, error) {
	lines := bufio.NewScanner(table)
	for lines.Scan() {
		f := strings.Fields(lines.Text())
		if len(f) < 10 || f[1] != from || f[2] != to || f[9] == "0" {
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

// cell is how the tables write an address: words of four bytes as native numbers.
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
