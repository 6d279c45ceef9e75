package seccomp

import (
	"encoding/binary"
	"testing"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// verdict runs the filter on one call. The simulator reads words in network byte order.
func verdict(t *testing.T, arch, nr uint32, args ...uint64) uint32 {
	t.Helper()
	raw, err := filter()
	return run(t, raw, err, arch, nr, args...)
}

func run(t *testing.T, raw []bpf.RawInstruction, err error, arch, nr uint32, args ...uint64) uint32 {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	prog, ok := bpf.Disassemble(raw)
	if !ok {
		t.Fatal("the filter cannot be read back")
	}
	vm, err := bpf.NewVM(prog)
	if err != nil {
		t.Fatal(err)
	}
	data := make([]byte, 64)
	binary.BigEndian.PutUint32(data[0:], nr)
	binary.BigEndian.PutUint32(data[4:], arch)
	for i, a := range args {
		binary.BigEndian.PutUint32(data[16+8*i:], uint32(a))
		binary.BigEndian.PutUint32(data[20+8*i:], uint32(a>>32))
	}
	out, err := vm.Run(data)
	if err != nil {
		t.Fatal(err)
	}
	return uint32(out)
}

func TestFilter(t *testing.T) {
	const yes = unix.SECCOMP_RET_ALLOW
	no := func(e unix.Errno) uint32 { return unix.SECCOMP_RET_ERRNO | uint32(e) }
	for _, c := range []struct {
		name string
		nr   uint32
		args []uint64
		want uint32
	}{
		{"read", unix.SYS_READ, nil, yes},
		{"ptrace of an own process", unix.SYS_PTRACE, nil, yes},
		{"landlock", unix.SYS_LANDLOCK_CREATE_RULESET, nil, yes},
		{"seccomp", unix.SYS_SECCOMP, nil, yes},
		{"newest known", ceiling, nil, yes},
		{"unknown", ceiling + 1, nil, no(unix.ENOSYS)},
		{"x32", 0x40000000, nil, no(unix.ENOSYS)},
		{"fork", unix.SYS_CLONE, []uint64{uint64(unix.SIGCHLD)}, yes},
		{"exit signal like a time namespace", unix.SYS_CLONE, []uint64{unix.CLONE_NEWTIME}, yes},
		{"user namespace", unix.SYS_CLONE, []uint64{unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET}, yes},
		{"mount namespace", unix.SYS_CLONE, []uint64{unix.CLONE_NEWUSER | unix.CLONE_NEWNS}, no(unix.EPERM)},
		{"unshare user", unix.SYS_UNSHARE, []uint64{unix.CLONE_NEWUSER}, yes},
		{"unshare files", unix.SYS_UNSHARE, []uint64{unix.CLONE_FS | unix.CLONE_FILES}, yes},
		{"unshare time", unix.SYS_UNSHARE, []uint64{unix.CLONE_NEWTIME}, no(unix.EPERM)},
		{"clone3", unix.SYS_CLONE3, nil, no(unix.ENOSYS)},
		{"mount", unix.SYS_MOUNT, nil, no(unix.EPERM)},
		{"chroot", unix.SYS_CHROOT, nil, yes}, // for Chromium; the kernel requires a capability
		{"unix socket", unix.SYS_SOCKET, []uint64{unix.AF_UNIX, unix.SOCK_STREAM}, yes},
		{"tcp", unix.SYS_SOCKET, []uint64{unix.AF_INET, unix.SOCK_STREAM | unix.SOCK_CLOEXEC | unix.SOCK_NONBLOCK, unix.IPPROTO_TCP}, yes},
		{"udp6", unix.SYS_SOCKET, []uint64{unix.AF_INET6, unix.SOCK_DGRAM}, yes},
		{"ping", unix.SYS_SOCKET, []uint64{unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_ICMP}, yes},
		{"mptcp", unix.SYS_SOCKET, []uint64{unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_MPTCP}, no(unix.EPROTONOSUPPORT)},
		{"raw", unix.SYS_SOCKET, []uint64{unix.AF_INET, unix.SOCK_RAW | unix.SOCK_CLOEXEC}, no(unix.EPERM)},
		{"route netlink", unix.SYS_SOCKET, []uint64{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE}, yes},
		{"connect", unix.SYS_CONNECT, nil, yes},
		{"other netlink", unix.SYS_SOCKET, []uint64{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_NETFILTER}, no(unix.EPROTONOSUPPORT)},
		{"vsock", unix.SYS_SOCKET, []uint64{unix.AF_VSOCK, unix.SOCK_STREAM}, no(unix.EAFNOSUPPORT)},
		{"vsock with high bits", unix.SYS_SOCKET, []uint64{1<<32 | unix.AF_VSOCK, unix.SOCK_STREAM}, no(unix.EAFNOSUPPORT)},
		{"window size", unix.SYS_IOCTL, []uint64{0, unix.TIOCGWINSZ}, yes},
		{"type", unix.SYS_IOCTL, []uint64{0, unix.TIOCSTI}, no(unix.EPERM)},
		{"type with high bits", unix.SYS_IOCTL, []uint64{0, 1<<32 | unix.TIOCSTI}, no(unix.EPERM)},
		{"number of bytes", unix.SYS_IOCTL, []uint64{0, unix.TIOCINQ}, yes},
		{"address of an interface", unix.SYS_IOCTL, []uint64{0, unix.SIOCGIFADDR}, yes},
		{"set an address", unix.SYS_IOCTL, []uint64{0, unix.SIOCSIFADDR}, no(unix.EPERM)},
		{"create a bridge", unix.SYS_IOCTL, []uint64{0, unix.SIOCBRADDBR}, no(unix.EPERM)},
		{"create a bridge with high bits", unix.SYS_IOCTL, []uint64{0, 1<<32 | unix.SIOCBRADDBR}, no(unix.EPERM)},
		{"first beyond sockets", unix.SYS_IOCTL, []uint64{0, 0x8c00}, yes},
		{"copy of a file", unix.SYS_IOCTL, []uint64{0, unix.FICLONE}, yes},
		{"create a subvolume", unix.SYS_IOCTL, []uint64{0, 0x5000940e}, no(unix.ENOTTY)},
		{"create a snapshot", unix.SYS_IOCTL, []uint64{0, 0x50009417}, no(unix.ENOTTY)},
		{"search btrfs", unix.SYS_IOCTL, []uint64{0, 0xd0009411}, no(unix.ENOTTY)},
		{"unix pair", unix.SYS_SOCKETPAIR, []uint64{unix.AF_UNIX, unix.SOCK_STREAM}, yes},
		{"vsock pair", unix.SYS_SOCKETPAIR, []uint64{unix.AF_VSOCK, unix.SOCK_STREAM}, no(unix.EAFNOSUPPORT)},
		{"reuse address", unix.SYS_SETSOCKOPT, []uint64{3, unix.SOL_SOCKET, unix.SO_REUSEADDR}, yes},
		{"no delay", unix.SYS_SETSOCKOPT, []uint64{3, unix.SOL_TCP, unix.TCP_NODELAY}, yes},
		{"time to live", unix.SYS_SETSOCKOPT, []uint64{3, unix.SOL_IP, unix.IP_TTL}, yes},
		{"traffic class", unix.SYS_SETSOCKOPT, []uint64{3, unix.SOL_IPV6, unix.IPV6_TCLASS}, yes},
		{"only v6", unix.SYS_SETSOCKOPT, []uint64{3, unix.SOL_IPV6, unix.IPV6_V6ONLY}, yes},
		{"original destination", unix.SYS_GETSOCKOPT, []uint64{3, unix.SOL_IP, 80}, yes},
		{"offload", unix.SYS_SETSOCKOPT, []uint64{3, unix.IPPROTO_UDP, 103}, yes},
		{"iptables", unix.SYS_SETSOCKOPT, []uint64{3, unix.SOL_IP, 64}, no(unix.ENOPROTOOPT)},
		{"ebtables", unix.SYS_SETSOCKOPT, []uint64{3, unix.SOL_IP, 128}, no(unix.ENOPROTOOPT)},
		{"ipvs", unix.SYS_SETSOCKOPT, []uint64{3, unix.SOL_IP, 1153}, no(unix.ENOPROTOOPT)},
		{"ip6tables", unix.SYS_GETSOCKOPT, []uint64{3, unix.SOL_IPV6, 64}, no(unix.ENOPROTOOPT)},
		{"protocol on demand", unix.SYS_SETSOCKOPT, []uint64{3, unix.SOL_TCP, unix.TCP_ULP}, no(unix.ENOPROTOOPT)},
		{"repair", unix.SYS_SETSOCKOPT, []uint64{3, unix.SOL_TCP, unix.TCP_REPAIR}, no(unix.ENOPROTOOPT)},
		{"encapsulation", unix.SYS_SETSOCKOPT, []uint64{3, unix.IPPROTO_UDP, 100}, no(unix.ENOPROTOOPT)},
		{"fifo", unix.SYS_MKNODAT, []uint64{0, 0, unix.S_IFIFO | 0o666}, yes},
		{"file", unix.SYS_MKNODAT, []uint64{0, 0, 0o666}, yes},
		{"device", unix.SYS_MKNODAT, []uint64{0, 0, unix.S_IFCHR | 0o666}, no(unix.EPERM)},
		{"personality", unix.SYS_PERSONALITY, []uint64{0xffffffff}, yes},
		{"read implies exec", unix.SYS_PERSONALITY, []uint64{0x0400000}, no(unix.EPERM)},
	} {
		if got := verdict(t, auditArch, c.nr, c.args...); got != c.want {
			t.Errorf("%s: got %#x, want %#x", c.name, got, c.want)
		}
	}
	if got := verdict(t, unix.AUDIT_ARCH_I386, unix.SYS_READ); got != unix.SECCOMP_RET_KILL_PROCESS {
		t.Errorf("another architecture: got %#x, want %#x", got, uint32(unix.SECCOMP_RET_KILL_PROCESS))
	}
}

func TestNotifications(t *testing.T) {
	const yes, asks = unix.SECCOMP_RET_ALLOW, unix.SECCOMP_RET_USER_NOTIF
	for _, c := range []struct {
		name           string
		nr             uint32
		args           []uint64
		plain, outward uint32
	}{
		{"read", unix.SYS_READ, nil, yes, yes},
		{"send", unix.SYS_SENDTO, nil, yes, yes},
		{"connect", unix.SYS_CONNECT, nil, yes, asks},
		{"route netlink", unix.SYS_SOCKET, []uint64{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE}, asks, asks},
		{"netlink with high bits", unix.SYS_SOCKET, []uint64{1<<32 | unix.AF_NETLINK, unix.SOCK_RAW}, asks, asks},
		{"unix", unix.SYS_SOCKET, []uint64{unix.AF_UNIX, unix.SOCK_DGRAM}, yes, yes},
		{"tcp", unix.SYS_SOCKET, []uint64{unix.AF_INET, unix.SOCK_STREAM | unix.SOCK_CLOEXEC}, yes, yes},
		{"udp", unix.SYS_SOCKET, []uint64{unix.AF_INET, unix.SOCK_DGRAM | unix.SOCK_NONBLOCK}, yes, asks},
		{"udp6", unix.SYS_SOCKET, []uint64{unix.AF_INET6, unix.SOCK_DGRAM}, yes, asks},
	} {
		for outbound, want := range map[bool]uint32{false: c.plain, true: c.outward} {
			raw, err := notifications(outbound)
			if got := run(t, raw, err, auditArch, c.nr, c.args...); got != want {
				t.Errorf("%s, outbound %v: got %#x, want %#x", c.name, outbound, got, want)
			}
		}
	}
}

// TestPodNotifications: no call that the filter permits without init creates a socket that could reach the outside.
func TestPodNotifications(t *testing.T) {
	const yes, asks = unix.SECCOMP_RET_ALLOW, unix.SECCOMP_RET_USER_NOTIF
	no := func(e unix.Errno) uint32 { return unix.SECCOMP_RET_ERRNO | uint32(e) }
	raw, err := podNotifications()
	for _, c := range []struct {
		name     string
		arch, nr uint32
		args     []uint64
		want     uint32
	}{
		{"read", auditArch, unix.SYS_READ, nil, yes},
		{"tcp", auditArch, unix.SYS_SOCKET, []uint64{unix.AF_INET, unix.SOCK_STREAM}, asks},
		{"udp6 with high bits", auditArch, unix.SYS_SOCKET, []uint64{1<<32 | unix.AF_INET6, unix.SOCK_DGRAM}, asks},
		{"unix", auditArch, unix.SYS_SOCKET, []uint64{unix.AF_UNIX, unix.SOCK_STREAM}, yes},
		{"netlink", auditArch, unix.SYS_SOCKET, []uint64{unix.AF_NETLINK, unix.SOCK_RAW}, yes},
		{"vsock", auditArch, unix.SYS_SOCKET, []uint64{unix.AF_VSOCK, unix.SOCK_STREAM}, no(unix.EAFNOSUPPORT)},
		{"smc", auditArch, unix.SYS_SOCKET, []uint64{unix.AF_SMC, unix.SOCK_STREAM}, no(unix.EAFNOSUPPORT)},
		{"connect", auditArch, unix.SYS_CONNECT, nil, asks},
		{"bind", auditArch, unix.SYS_BIND, nil, asks},
		{"listen", auditArch, unix.SYS_LISTEN, nil, asks},
		{"send", auditArch, unix.SYS_SENDTO, []uint64{3, 1, 1, 0, 0, 16}, yes},
		{"sendto", auditArch, unix.SYS_SENDTO, []uint64{3, 1, 1, 0, 0x7000, 16}, asks},
		{"sendto with an address above 4 GiB", auditArch, unix.SYS_SENDTO, []uint64{3, 1, 1, 0, 1 << 32, 16}, asks},
		{"sendmsg", auditArch, unix.SYS_SENDMSG, []uint64{3, 0x7000, unix.MSG_NOSIGNAL}, yes},
		{"sendmsg that connects", auditArch, unix.SYS_SENDMSG, []uint64{3, 0x7000, unix.MSG_FASTOPEN}, no(unix.EOPNOTSUPP)},
		{"sendmmsg that connects", auditArch, unix.SYS_SENDMMSG, []uint64{3, 0x7000, 1, unix.MSG_FASTOPEN}, no(unix.EOPNOTSUPP)},
		{"routing of a socket", auditArch, unix.SYS_SETSOCKOPT, []uint64{3, unix.SOL_SOCKET, unix.SO_DONTROUTE}, no(unix.EPERM)},
		{"the same option of TCP", auditArch, unix.SYS_SETSOCKOPT, []uint64{3, unix.SOL_TCP, unix.SO_DONTROUTE}, yes},
		{"another option", auditArch, unix.SYS_SETSOCKOPT, []uint64{3, unix.SOL_SOCKET, unix.SO_KEEPALIVE}, yes},
		{"io_uring", auditArch, unix.SYS_IO_URING_SETUP, nil, no(unix.ENOSYS)},
		{"x32", auditArch, 0x40000000 | unix.SYS_SOCKET, []uint64{unix.AF_INET}, no(unix.ENOSYS)},
		{"another architecture", unix.AUDIT_ARCH_I386, 359, []uint64{unix.AF_INET}, no(unix.ENOSYS)},
	} {
		if got := run(t, raw, err, c.arch, c.nr, c.args...); got != c.want {
			t.Errorf("%s: got %#x, want %#x", c.name, got, c.want)
		}
	}
}
