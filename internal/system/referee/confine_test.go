package referee

import (
	"errors"
	"net"
	"net/netip"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// inRoutedNetwork runs a function without privileges in a network with a route to the outside. Sent returns the ports of the
// packets that have left, up to one for a port.
func inRoutedNetwork(t *testing.T, f func(sent func(until int) []int)) {
	t.Helper()
	testenv.NeedRoot(t)
	testenv.Need(t, "ip")
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and the thread ends with this function: its network is no longer ours
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			t.Error(err)
			return
		}
		ip := exec.Command("ip", "-batch", "-")
		ip.Stdin = strings.NewReader("link set lo up\nlink add eth0 type veth peer name eth1\nlink set eth1 up\n" +
			"addr add 10.77.0.2/24 dev eth0\nlink set eth0 up\n" +
			"route add default via 10.77.0.1\nneigh add 10.77.0.1 lladdr 02:00:00:00:00:01 dev eth0\n")
		if out, err := ip.CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
			return
		}
		wire, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0x0008)
		if err != nil {
			t.Error(err)
			return
		}
		defer unix.Close(wire)
		peer, err := net.InterfaceByName("eth1")
		if err == nil {
			err = errors.Join(unix.Bind(wire, &unix.SockaddrLinklayer{Protocol: 0x0008, Ifindex: peer.Index}),
				unix.SetsockoptTimeval(wire, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 60}))
		}
		if err != nil {
			t.Error(err)
			return
		}
		// Only this thread.
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, 1000, 1000, 1000); errno != 0 {
			t.Error(errno)
			return
		}
		f(func(until int) (ports []int) {
			for buf := make([]byte, 128); ; {
				n, _, err := unix.Recvfrom(wire, buf, 0)
				if err != nil || n < 24 {
					t.Errorf("got %d bytes, %v, want a packet", n, err)
					return nil
				}
				port := int(buf[22])<<8 | int(buf[23])
				if ports = append(ports, port); port == until {
					return ports
				}
			}
		})
	}()
	<-done
}

var outsideAddress = [4]byte{93, 184, 215, 14}

func connectOutside(fd, port int) {
	_ = unix.Connect(fd, &unix.SockaddrInet4{Port: port, Addr: outsideAddress})
}

func disconnect(fd int) {
	var none unix.RawSockaddrInet4
	_, _, _ = unix.Syscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&none)), unsafe.Sizeof(none))
}

func confined(t *testing.T, kind int) int {
	t.Helper()
	fd, err := newConfined(unix.AF_INET, kind|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Error(err)
		return -1
	}
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

// TestConfinedSockets: no call of a program makes a confined socket send to the outside.
func TestConfinedSockets(t *testing.T) {
	inRoutedNetwork(t, func(sent func(until int) []int) {
		fd := confined(t, unix.SOCK_STREAM)
		connectOutside(fd, 1001)
		disconnect(fd)
		connectOutside(fd, 1002)
		disconnect(fd)
		for name, err := range map[string]error{
			"no interface": unix.BindToDevice(fd, ""), "another interface": unix.BindToDevice(fd, "eth0"),
			"its number": unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BINDTOIFINDEX, 0),
		} {
			if !errors.Is(err, unix.EPERM) {
				t.Errorf("%s: got %v, want %v", name, err, unix.EPERM)
			}
		}
		connectOutside(fd, 1003)
		_ = unix.Sendto(confined(t, unix.SOCK_STREAM), []byte("x"), unix.MSG_FASTOPEN, &unix.SockaddrInet4{Port: 1004, Addr: outsideAddress})
		if accepted := acceptConfined(t); accepted >= 0 {
			disconnect(accepted)
			connectOutside(accepted, 1005)
		}
		packets := confined(t, unix.SOCK_DGRAM)
		for range 2 {
			if err := unix.Sendto(packets, []byte("x"), 0, &unix.SockaddrInet4{Port: 1006, Addr: outsideAddress}); err != unix.ENETUNREACH {
				t.Errorf("got %v, want %v", err, unix.ENETUNREACH)
			}
			disconnect(packets)
		}
		// The last packet is one of an ordinary socket.
		plain, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Error(err)
			return
		}
		defer unix.Close(plain)
		const last = 2000
		if err := unix.Sendto(plain, []byte("x"), 0, &unix.SockaddrInet4{Port: last, Addr: outsideAddress}); err != nil {
			t.Error(err)
			return
		}
		if ports := sent(last); len(ports) != 1 {
			t.Errorf("packets left for ports %v, want only %d", ports, last)
		}
	})
}

// acceptConfined returns a socket that a confined server has accepted.
func acceptConfined(t *testing.T) int {
	t.Helper()
	server, client := confined(t, unix.SOCK_STREAM), confined(t, unix.SOCK_STREAM)
	err := errors.Join(unix.Bind(server, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}), unix.Listen(server, 1))
	addr, more := unix.Getsockname(server)
	if err = errors.Join(err, more); err != nil {
		t.Error(err)
		return -1
	}
	_ = unix.Connect(client, addr)
	if err := wait(server, unix.POLLIN, localTimeout); err != nil {
		t.Error(err)
		return -1
	}
	fd, _, err := unix.Accept4(server, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
	if err != nil {
		t.Error(err)
		return -1
	}
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

// TestConfinedKinds: init creates no socket that its caller could not create, or that it cannot confine.
func TestConfinedKinds(t *testing.T) {
	for name, c := range map[string]struct {
		domain, kind, protocol int
		want                   error
	}{
		"raw": {unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_TCP, unix.EPERM}, "packet": {unix.AF_INET, unix.SOCK_PACKET, 0, unix.EPERM},
		"sctp":    {unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SCTP, unix.EPROTONOSUPPORT},
		"mptcp":   {unix.AF_INET6, unix.SOCK_STREAM, unix.IPPROTO_MPTCP, unix.EPROTONOSUPPORT},
		"udplite": {unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_UDPLITE, unix.EPROTONOSUPPORT},
	} {
		if fd, err := newConfined(c.domain, c.kind, c.protocol); err != c.want {
			t.Errorf("%s: got %d, %v, want %v", name, fd, err, c.want)
		}
	}
}

func TestListens(t *testing.T) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrInet4{}), unix.Listen(fd, 1)); err != nil {
		t.Fatal(err)
	}
	addr, err := localAddress(fd)
	if err != nil {
		t.Fatal(err)
	}
	to := netip.AddrPortFrom(netip.MustParseAddr("10.77.0.2"), addr.Port())
	if !listens(to) {
		t.Errorf("nothing listens on %s, want a server of all addresses", to)
	}
	unix.Close(fd)
	if listens(to) {
		t.Errorf("a server listens on %s, want none", to)
	}
}
