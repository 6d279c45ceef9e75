package seccomp

import (
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// A process that creates a user and a network namespace has every capability over that
// network, and with it reaches a large part of the kernel: interfaces of all kinds,
// traffic control, packet filters. Chromium's own sandbox needs the two namespaces but
// nothing in them. So the filter denies changes of a network, regardless of the
// capabilities of the caller:
//
//   - netlink sockets, except in the sandbox's own network, where no process has the
//     capability and every language runtime lists its addresses (see package referee),
//   - the ioctls of sockets that change anything,
//   - the socket options of packet filters, of connection repair and of protocols
//     that are loaded on demand.

// socketRule permits unix sockets, TCP, UDP, ping and routing netlink, which notifications restricts.
// Others, such as vsock, packet, alg or nfnetlink, reach parts of the host or of the
// kernel that have no namespaces.
func socketRule() []bpf.Instruction {
	inet := []bpf.Instruction{arg(1), bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: 0xf}}
	inet = append(inet,
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.SOCK_STREAM, SkipTrue: 2},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.SOCK_DGRAM, SkipTrue: 1},
		refuse(unix.EPERM), arg(2))
	inet = append(inet, except(refuse(unix.EPROTONOSUPPORT), 0, unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6)...)
	netlink := append([]bpf.Instruction{arg(2)}, except(refuse(unix.EPROTONOSUPPORT), unix.NETLINK_ROUTE)...)
	p := []bpf.Instruction{arg(0),
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.AF_INET, SkipTrue: 5},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.AF_INET6, SkipTrue: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.AF_NETLINK, SkipTrue: 3 + uint8(len(inet))},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.AF_UNIX, SkipTrue: 1},
		refuse(unix.EAFNOSUPPORT),
		allow,
	}
	return append(append(p, inet...), netlink...)
}

// Options that are refused. Those of packet filters begin at baseFilter, above all that
// IPv4 has; IPv6 uses some of these numbers itself.
const (
	baseFilter  = 64
	originalDst = 80
	udpEncap    = 100
)

var ipv6Filter = []uint32{64, 65, 68, 69}

// optionRule refuses the options of packet filters and of exotic protocols, for
// reading and writing.
func optionRule() []bpf.Instruction {
	ip4 := []bpf.Instruction{arg(2),
		bpf.JumpIf{Cond: bpf.JumpLessThan, Val: baseFilter, SkipTrue: 2},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: originalDst, SkipTrue: 1},
		refuse(unix.ENOPROTOOPT), allow,
	}
	ip6 := append([]bpf.Instruction{arg(2)}, oneOf(refuse(unix.ENOPROTOOPT), ipv6Filter...)...)
	tcp := append([]bpf.Instruction{arg(2)}, oneOf(refuse(unix.ENOPROTOOPT), unix.TCP_ULP, unix.TCP_REPAIR,
		unix.TCP_REPAIR_QUEUE, unix.TCP_REPAIR_OPTIONS, unix.TCP_REPAIR_WINDOW)...)
	udp := append([]bpf.Instruction{arg(2)}, oneOf(refuse(unix.ENOPROTOOPT), udpEncap)...)
	p := []bpf.Instruction{arg(1),
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.SOL_IP, SkipTrue: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.SOL_IPV6, SkipTrue: 3 + uint8(len(ip4))},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.SOL_TCP, SkipTrue: 2 + uint8(len(ip4)+len(ip6))},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.IPPROTO_UDP, SkipTrue: 1 + uint8(len(ip4)+len(ip6)+len(tcp))},
		allow,
	}
	for _, rule := range [][]bpf.Instruction{ip4, ip6, tcp, udp} {
		p = append(p, rule...)
	}
	return p
}

// Ranges of ioctl numbers.
const (
	socketIoctls, socketIoctlsEnd = 0x8900, 0x8c00 // of sockets, interfaces, bridges and radios
	btrfsIoctls                   = 0x94           // the second byte
)

// readingIoctls are those of sockets that only read, or concern one socket.
var readingIoctls = []uint32{
	0x8901, unix.SIOCSPGRP, 0x8903, unix.SIOCGPGRP, unix.SIOCATMARK, 0x8906, 0x8907,
	unix.SIOCGIFNAME, unix.SIOCGIFCONF, unix.SIOCGIFFLAGS, unix.SIOCGIFADDR, unix.SIOCGIFDSTADDR, unix.SIOCGIFBRDADDR, unix.SIOCGIFNETMASK,
	unix.SIOCGIFMETRIC, unix.SIOCGIFMTU, unix.SIOCGIFHWADDR, unix.SIOCGIFINDEX, unix.SIOCGIFTXQLEN, unix.SIOCOUTQNSD,
}

// cloneIoctls copy file ranges without copying data. All filesystems have them, under
// numbers that were btrfs's first.
var cloneIoctls = []uint32{unix.FICLONE, unix.FICLONERANGE, unix.FIDEDUPERANGE}

// ioctlRule refuses terminal input injection, console control, line disciplines, which
// load drivers, all changes of a network interface, and the controls of btrfs, the
// filesystem of disks and volumes.
func ioctlRule() []bpf.Instruction {
	terminal := oneOf(refuse(unix.EPERM), unix.TIOCSTI, unix.TIOCLINUX, unix.TIOCSETD)
	socket := except(refuse(unix.EPERM), readingIoctls...)
	btrfs := append([]bpf.Instruction{arg(1)}, except(refuse(unix.ENOTTY), cloneIoctls...)...)
	p := []bpf.Instruction{arg(1),
		bpf.JumpIf{Cond: bpf.JumpLessThan, Val: socketIoctls, SkipTrue: uint8(1 + len(socket))},
		bpf.JumpIf{Cond: bpf.JumpGreaterOrEqual, Val: socketIoctlsEnd, SkipTrue: uint8(len(socket))},
	}
	p = append(p, socket...)
	p = append(p,
		bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: 0xff00},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: btrfsIoctls << 8, SkipTrue: uint8(len(btrfs))})
	p = append(p, btrfs...)
	return append(append(p, arg(1)), terminal...)
}
