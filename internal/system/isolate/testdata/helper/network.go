package main

import (
	"net"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

func (t targets) networks() []attempt {
	dial := func(network, addr string) attempt {
		return attempt{"dial " + network + " " + addr, func() error {
			c, err := net.DialTimeout(network, addr, time.Second)
			if err == nil {
				c.Close()
			}
			return err
		}}
	}
	list := []attempt{
		dial("unix", "@"+t["abstract"]), dial("unix", t["socket"]), dial("tcp", t["tcp"]),
		dial("tcp", "169.254.169.254:80"), dial("tcp", "[fd00:ec2::254]:80"),
		dial("tcp", "8.8.8.8:53"), dial("udp", "8.8.8.8:53"),
		{"other interfaces", func() error {
			ifs, err := net.Interfaces()
			if err == nil && len(ifs) > 1 {
				return nil
			}
			return errHeld
		}},
		{"add an address", func() error {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			r, _ := unix.NewIfreq("lo")
			r.SetUint16(0)
			return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, r)
		}},
	}
	for name, change := range map[string][2]int{
		"set an address": {unix.AF_INET, unix.SIOCSIFADDR}, "create a bridge": {unix.AF_INET, unix.SIOCBRADDBR},
		"add a tunnel": {unix.AF_INET, 0x89f1},
		"ask a driver": {unix.AF_INET, unix.SIOCETHTOOL}, "add a vlan": {unix.AF_INET, 0x8983}, "join a bond": {unix.AF_INET, 0x8990},
		"add a route": {unix.AF_INET, unix.SIOCADDRT}, "add a v6 route": {unix.AF_INET6, unix.SIOCADDRT},
		"set an arp entry": {unix.AF_INET, 0x8955},
	} {
		list = append(list, attempt{"ioctl: " + name, func() error {
			fd, err := unix.Socket(change[0], unix.SOCK_DGRAM, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			var req [256]byte
			return refusedByFilter(sys(unix.SYS_IOCTL, uintptr(fd), uintptr(change[1]), uintptr(unsafe.Pointer(&req))))
		}})
	}
	for name, o := range map[string][3]int{
		"read iptables": {unix.AF_INET, unix.SOL_IP, 64}, "read arptables": {unix.AF_INET, unix.SOL_IP, 96},
		"read ebtables": {unix.AF_INET, unix.SOL_IP, 128},
		"read ipvs":     {unix.AF_INET, unix.SOL_IP, 1153}, "read ip6tables": {unix.AF_INET6, unix.SOL_IPV6, 64},
	} {
		list = append(list, attempt{"option: " + name, func() error {
			fd, err := unix.Socket(o[0], unix.SOCK_DGRAM, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			var buf [256]byte
			n := uint32(84)
			copy(buf[:], "filter")
			if err := sys(unix.SYS_SETSOCKOPT, uintptr(fd), uintptr(o[1]), uintptr(o[2]),
				uintptr(unsafe.Pointer(&buf)), 84); refusedByFilter(err) == nil {
				return nil
			}
			return refusedByFilter(sys(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(o[1]), uintptr(o[2]),
				uintptr(unsafe.Pointer(&buf)), uintptr(unsafe.Pointer(&n))))
		}})
	}
	list = append(list,
		attempt{"option: load a protocol", func() error {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			return refusedByFilter(unix.SetsockoptString(fd, unix.SOL_TCP, unix.TCP_ULP, "tls"))
		}},
		attempt{"option: repair", func() error {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			return refusedByFilter(unix.SetsockoptInt(fd, unix.SOL_TCP, unix.TCP_REPAIR, 1))
		}},
		attempt{"netlink in a network of our own", func() error {
			if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
				return err
			}
			return sys(unix.SYS_SOCKET, unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE)
		}},
		attempt{"configure by netlink", func() error { return addLink() }},
		attempt{"vsock pair", func() error {
			var fds [2]int32
			return sys(unix.SYS_SOCKETPAIR, unix.AF_VSOCK, unix.SOCK_STREAM, 0, uintptr(unsafe.Pointer(&fds)))
		}},
		attempt{"tipc pair", func() error {
			var fds [2]int32
			return sys(unix.SYS_SOCKETPAIR, unix.AF_TIPC, unix.SOCK_STREAM, 0, uintptr(unsafe.Pointer(&fds)))
		}})
	for _, s := range []struct {
		name                string
		family, kind, proto int
	}{
		{"raw", unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP}, {"raw v6", unix.AF_INET6, unix.SOCK_RAW, unix.IPPROTO_ICMPV6},
		{"raw with flags", unix.AF_INET, unix.SOCK_RAW | unix.SOCK_CLOEXEC | unix.SOCK_NONBLOCK, unix.IPPROTO_RAW},
		{"sctp", unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SCTP}, {"packet", unix.AF_PACKET, unix.SOCK_RAW, 0},
		{"vsock", unix.AF_VSOCK, unix.SOCK_STREAM, 0}, {"crypto", unix.AF_ALG, unix.SOCK_SEQPACKET, 0},
		{"bluetooth", unix.AF_BLUETOOTH, unix.SOCK_RAW, 0},
		{"can", unix.AF_CAN, unix.SOCK_RAW, 1}, {"tipc", unix.AF_TIPC, unix.SOCK_STREAM, 0}, {"rds", unix.AF_RDS, unix.SOCK_SEQPACKET, 0},
		{"xdp", unix.AF_XDP, unix.SOCK_RAW, 0}, {"key", unix.AF_KEY, unix.SOCK_RAW, 2}, {"kcm", unix.AF_KCM, unix.SOCK_DGRAM, 0},
		{"netfilter", unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_NETFILTER}, {"audit", unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_AUDIT},
		{"uevent", unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_KOBJECT_UEVENT}, {"xfrm", unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_XFRM},
		{"family with high bits", 1<<32 | unix.AF_VSOCK, unix.SOCK_STREAM, 0},
	} {
		list = append(list, attempt{"socket " + s.name, func() error {
			return sys(unix.SYS_SOCKET, uintptr(s.family), uintptr(s.kind), uintptr(s.proto))
		}})
	}
	return list
}

// refusedByFilter returns nil, an escape, unless a call failed with the filter's error.
// Another kernel has other errors.
func refusedByFilter(err error) error {
	if otherKernel && err != nil {
		return err
	}
	if err == unix.EPERM || err == unix.ENOPROTOOPT || err == unix.ENOTTY {
		return err
	}
	return nil
}

// addLink creates a dummy interface in the current network.
func addLink() error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 5})
	// An nlmsghdr, an ifinfomsg, and IFLA_LINKINFO with IFLA_INFO_KIND "dummy".
	msg := []byte{52, 0, 0, 0, unix.RTM_NEWLINK, 0, 5, 6, 1, 0, 0, 0, 0, 0, 0, 0, 31: 0}
	msg = append(msg, 20, 0, unix.IFLA_LINKINFO, 0, 10, 0, unix.IFLA_INFO_KIND, 0, 'd', 'u', 'm', 'm', 'y', 0, 0, 0, 0, 0, 0, 0)
	if err := unix.Sendto(fd, msg, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	answer := make([]byte, 4096)
	n, _, err := unix.Recvfrom(fd, answer, 0)
	if err != nil {
		return err
	}
	if n < 20 {
		return errHeld
	}
	if code := *(*int32)(unsafe.Pointer(&answer[16])); code != 0 {
		return unix.Errno(-code)
	}
	return nil
}
