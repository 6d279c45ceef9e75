package referee

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// addressesOf returns the addresses of init's network.
func addressesOf() map[netip.Addr]bool {
	own := map[netip.Addr]bool{}
	list, _ := net.InterfaceAddrs()
	for _, a := range list {
		if n, ok := a.(*net.IPNet); ok {
			if ip, ok := netip.AddrFromSlice(n.IP); ok {
				own[ip.Unmap()] = true
			}
		}
	}
	return own
}

// own reports whether an address is one of a routed sandbox.
func (l *sockets) own(ip netip.Addr) bool { return l != nil && l.addresses()[ip] }

// connectOwn decides on a connect to an address of the sandbox itself. The reply of a closed port does not reach a socket that is
// bound to the loopback interface, so init replies.
func (o *outward) connectOwn(c *call, to netip.AddrPort) {
	stream := o.sockets.release(c)
	if stream && !listens(netip.AddrPortFrom(to.Addr().Unmap(), to.Port())) {
		c.fail(unix.ECONNREFUSED)
		return
	}
	c.proceed()
}

// listens reports whether a server listens on an address of the sandbox.
func listens(to netip.AddrPort) bool {
	addrs := []netip.Addr{to.Addr(), netip.IPv6Unspecified()}
	if to.Addr().Is4() {
		addrs = append(addrs, netip.IPv4Unspecified(), netip.AddrFrom16(to.Addr().As16()))
	}
	for _, file := range []string{"/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"} {
		f, err := os.Open(file)
		if err != nil {
			continue
		}
		defer f.Close()
		lines := bufio.NewScanner(f)
		for lines.Scan() {
			fields := strings.Fields(lines.Text())
			if len(fields) < 4 || fields[3] != tcpListen {
				continue
			}
			for _, a := range addrs {
				if fields[1] == kernelText(a, to.Port()) {
					return true
				}
			}
		}
	}
	return false
}

// tcpListen is the state of a listening socket in /proc/net/tcp.
const tcpListen = "0A"

// kernelText returns an address as /proc/net/tcp shows it: words in the order of the machine.
func kernelText(a netip.Addr, port uint16) string {
	var text strings.Builder
	for b := a.AsSlice(); len(b) > 0; b = b[4:] {
		fmt.Fprintf(&text, "%08X", binary.NativeEndian.Uint32(b))
	}
	return fmt.Sprintf("%s:%04X", text.String(), port)
}
