package isolate

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// The filter names what is refused and ends at the newest call it knows: any
// number above is ENOSYS. So everything it lets through was decided on, as with
// an allow list, and a new kernel brings nothing new inside.
//
// User namespaces stay possible, because Chromium's own sandbox stands on them.
// What makes them dangerous is refused instead: mounts, the other namespaces,
// the exotic socket families, and the kernel's rarely trodden corners.

// ceiling is the newest system call that was decided on.
const ceiling = unix.SYS_REMOVEXATTRAT

// denied lists the calls that always fail, by the error they fail with, for all
// architectures; oldDenied has those that only some have.
var denied = map[syscall.Errno][]uint32{
	unix.EPERM: {
		// The sandbox's view of the filesystem is final.
		unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_PIVOT_ROOT, unix.SYS_OPEN_TREE, unix.SYS_MOVE_MOUNT, unix.SYS_FSOPEN,
		unix.SYS_FSCONFIG, unix.SYS_FSMOUNT, unix.SYS_FSPICK, unix.SYS_MOUNT_SETATTR, unix.SYS_SETNS,
		unix.SYS_OPEN_BY_HANDLE_AT, unix.SYS_QUOTACTL, unix.SYS_QUOTACTL_FD, unix.SYS_FANOTIFY_INIT,
		// Kernel keyrings are not namespaced.
		unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY, unix.SYS_KEYCTL,
		// Programs and code in the kernel.
		unix.SYS_BPF, unix.SYS_PERF_EVENT_OPEN, unix.SYS_INIT_MODULE, unix.SYS_FINIT_MODULE, unix.SYS_DELETE_MODULE,
		unix.SYS_KEXEC_LOAD, unix.SYS_USERFAULTFD,
		// The machine as a whole.
		unix.SYS_REBOOT, unix.SYS_SWAPON, unix.SYS_SWAPOFF, unix.SYS_ACCT, unix.SYS_SYSLOG, unix.SYS_VHANGUP,
		unix.SYS_SETTIMEOFDAY, unix.SYS_CLOCK_SETTIME, unix.SYS_CLOCK_ADJTIME, unix.SYS_ADJTIMEX,
		unix.SYS_SETDOMAINNAME, unix.SYS_SETHOSTNAME, unix.SYS_NFSSERVCTL, unix.SYS_LOOKUP_DCOOKIE,
		unix.SYS_MOVE_PAGES, unix.SYS_MIGRATE_PAGES, unix.SYS_MBIND, unix.SYS_SET_MEMPOLICY, unix.SYS_SET_MEMPOLICY_HOME_NODE,
	},
	unix.ENOSYS: {
		// Programs have another way and take it when the kernel seems too old:
		// clone, whose flags can be read here, and epoll.
		unix.SYS_CLONE3, unix.SYS_IO_URING_SETUP, unix.SYS_IO_URING_ENTER, unix.SYS_IO_URING_REGISTER,
	},
}

// namespaces are those that may not be made, not even in a user namespace.
const namespaces = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC

// allow, errno and the like are the filter's verdicts.
var allow = bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW}

func refuse(e syscall.Errno) bpf.Instruction {
	return bpf.RetConstant{Val: unix.SECCOMP_RET_ERRNO | uint32(e)}
}

// arg loads the low word of an argument. The kernel looks at no more than that
// in the calls below.
func arg(n uint32) bpf.Instruction { return bpf.LoadAbsolute{Off: 16 + 8*n, Size: 4} }

// oneOf refuses the listed values of the loaded word and allows all others;
// except turns that around.
func oneOf(no bpf.Instruction, values ...uint32) []bpf.Instruction { return sieve(no, allow, values) }

func except(no bpf.Instruction, values ...uint32) []bpf.Instruction { return sieve(allow, no, values) }

func sieve(hit, miss bpf.Instruction, values []uint32) []bpf.Instruction {
	var p []bpf.Instruction
	for i, v := range values {
		p = append(p, bpf.JumpIf{Cond: bpf.JumpEqual, Val: v, SkipTrue: uint8(len(values) - i)})
	}
	return append(p, miss, hit)
}

func flags(mask uint32) []bpf.Instruction {
	return []bpf.Instruction{arg(0), bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: mask, SkipTrue: 1}, allow, refuse(unix.EPERM)}
}

// socketRule lets through unix sockets, TCP, UDP and ping, and of netlink only
// routing, which every resolver reads. Others, such as vsock, packet, alg or
// nfnetlink, reach parts of the host or of the kernel that no namespace holds.
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

// rules lists the calls whose arguments decide. Each program ends in a verdict.
func rules() map[uint32][]bpf.Instruction {
	// Devices cannot be made in a user namespace, but whiteouts, which overlays
	// take for deletions, can.
	node := func(mode uint32) []bpf.Instruction {
		return append([]bpf.Instruction{arg(mode), bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: unix.S_IFMT}},
			oneOf(refuse(unix.EPERM), unix.S_IFCHR, unix.S_IFBLK)...)
	}
	r := map[uint32][]bpf.Instruction{
		unix.SYS_CLONE:   flags(namespaces),
		unix.SYS_UNSHARE: flags(namespaces | unix.CLONE_NEWTIME),
		unix.SYS_SOCKET:  socketRule(),
		// Typing into a terminal from below, console control, and line
		// disciplines, which load drivers.
		unix.SYS_IOCTL:       append([]bpf.Instruction{arg(1)}, oneOf(refuse(unix.EPERM), unix.TIOCSTI, unix.TIOCLINUX, unix.TIOCSETD)...),
		unix.SYS_PERSONALITY: append([]bpf.Instruction{arg(0)}, except(refuse(unix.EPERM), 0, 0x8, 0x20000, 0x20008, 0x40000, 0xffffffff)...),
		unix.SYS_MKNODAT:     node(2),
	}
	if mknod != 0 {
		r[mknod] = node(1)
	}
	return r
}

// perGroup is how many calls of a filter are decided on one after the other.
const perGroup = 8

// filter assembles the program. The calls are in order and in groups, of which all
// but one are passed over: the kernel runs the program once for each call there is
// when it is set, and then for each call whose arguments matter.
func filter() ([]bpf.RawInstruction, error) {
	all := rules()
	for _, list := range []map[syscall.Errno][]uint32{denied, oldDenied} {
		for e, calls := range list {
			for _, nr := range calls {
				all[nr] = []bpf.Instruction{refuse(e)}
			}
		}
	}
	p := []bpf.Instruction{
		bpf.LoadAbsolute{Off: 4, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: auditArch, SkipTrue: 1},
		bpf.RetConstant{Val: unix.SECCOMP_RET_KILL_PROCESS}, // another architecture's call numbers
		bpf.LoadAbsolute{Off: 0, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpLessOrEqual, Val: ceiling, SkipTrue: 1}, // also shuts out x32
		refuse(unix.ENOSYS),
	}
	for group := range slices.Chunk(slices.Sorted(maps.Keys(all)), perGroup) {
		var body []bpf.Instruction
		for _, nr := range group {
			body = append(body, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: nr, SkipTrue: uint8(len(all[nr]))})
			body = append(body, all[nr]...)
		}
		if len(body) >= math.MaxUint8 {
			return nil, fmt.Errorf("assemble seccomp filter: a group of %d instructions cannot be passed over", len(body))
		}
		p = append(p, bpf.JumpIf{Cond: bpf.JumpGreaterThan, Val: group[len(group)-1], SkipTrue: uint8(len(body) + 1)})
		p = append(append(p, body...), allow)
	}
	raw, err := bpf.Assemble(append(p, allow))
	if err != nil {
		return nil, fmt.Errorf("assemble seccomp filter: %w", err)
	}
	return raw, nil
}

// sealing is the filter as the kernel wants it. The hub makes it, once, and sends it
// along: to assemble it would be a twentieth of what init does.
var sealing = sync.OnceValues(func() (string, error) {
	raw, err := filter()
	if err != nil {
		return "", err
	}
	var b []byte
	for _, r := range raw {
		b = binary.NativeEndian.AppendUint16(b, r.Op)
		b = binary.NativeEndian.AppendUint32(append(b, r.Jt, r.Jf), r.K)
	}
	return string(b), nil
})

// seal gives up new privileges and puts the filter on all threads, for good.
func seal(sealing string) error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("set no_new_privs: %w", err)
	}
	prog := make([]unix.SockFilter, len(sealing)/unix.SizeofSockFilter)
	if len(prog) == 0 {
		return errors.New("set seccomp filter: there is none")
	}
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&prog[0])), len(sealing)), sealing)
	fprog := unix.SockFprog{Len: uint16(len(prog)), Filter: &prog[0]}
	tid, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&fprog)))
	if errno != 0 {
		return fmt.Errorf("set seccomp filter: %w", errno)
	}
	if tid != 0 {
		return fmt.Errorf("set seccomp filter: thread %d cannot have it", tid)
	}
	return nil
}
