// Package seccomp owns the filters of system calls: it assembles and installs them. The first applies to
// all processes and to init. The second, in notify.go, only to the processes that init starts: it passes calls
// to init, which decides on them in package referee.
//
// The filter lists the refused calls, up to the newest call that it knows; any higher number
// is ENOSYS. So every call that it permits was reviewed, as with an allow list, and a newer
// kernel adds nothing inside.
//
// User namespaces stay possible, because Chromium's own sandbox is built on them. The filter
// refuses what makes them dangerous: mounts, the other namespaces, the configuration of
// networks (network.go), and rarely used parts of the kernel. It does not rely on the caller
// being unprivileged: it holds for root inside, too.
package seccomp

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

// ceiling is the newest system call that was reviewed.
const ceiling = unix.SYS_REMOVEXATTRAT

// denied lists the calls that always fail, by their error, for all architectures;
// oldDenied lists those that only some architectures have.
var denied = map[syscall.Errno][]uint32{
	unix.EPERM: {
		// The sandbox's view of the filesystem is final.
		unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_PIVOT_ROOT, unix.SYS_OPEN_TREE, unix.SYS_MOVE_MOUNT, unix.SYS_FSOPEN,
		unix.SYS_FSCONFIG, unix.SYS_FSMOUNT, unix.SYS_FSPICK, unix.SYS_MOUNT_SETATTR, unix.SYS_SETNS,
		unix.SYS_OPEN_BY_HANDLE_AT, unix.SYS_QUOTACTL, unix.SYS_QUOTACTL_FD, unix.SYS_FANOTIFY_INIT,
		// Kernel keyrings are not namespaced.
		unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY, unix.SYS_KEYCTL,
		// Code in the kernel.
		unix.SYS_BPF, unix.SYS_PERF_EVENT_OPEN, unix.SYS_INIT_MODULE, unix.SYS_FINIT_MODULE, unix.SYS_DELETE_MODULE,
		unix.SYS_KEXEC_LOAD, unix.SYS_USERFAULTFD,
		// The machine as a whole.
		unix.SYS_REBOOT, unix.SYS_SWAPON, unix.SYS_SWAPOFF, unix.SYS_ACCT, unix.SYS_SYSLOG, unix.SYS_VHANGUP,
		unix.SYS_SETTIMEOFDAY, unix.SYS_CLOCK_SETTIME, unix.SYS_CLOCK_ADJTIME, unix.SYS_ADJTIMEX,
		unix.SYS_SETDOMAINNAME, unix.SYS_SETHOSTNAME, unix.SYS_NFSSERVCTL, unix.SYS_LOOKUP_DCOOKIE,
		unix.SYS_MOVE_PAGES, unix.SYS_MIGRATE_PAGES, unix.SYS_MBIND, unix.SYS_SET_MEMPOLICY, unix.SYS_SET_MEMPOLICY_HOME_NODE,
	},
	unix.ENOSYS: {
		// With ENOSYS programs fall back to clone, whose flags a filter can read, and to epoll.
		unix.SYS_CLONE3, unix.SYS_IO_URING_SETUP, unix.SYS_IO_URING_ENTER, unix.SYS_IO_URING_REGISTER,
	},
}

// namespaces lists those that cannot be created, not even in a user namespace.
const namespaces = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC

// allow is the filter's verdict that permits a call.
var allow = bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW}

func refuse(e syscall.Errno) bpf.Instruction {
	return bpf.RetConstant{Val: unix.SECCOMP_RET_ERRNO | uint32(e)}
}

// arg loads the low word of an argument. The kernel uses no more than that in the
// calls below.
func arg(n uint32) bpf.Instruction { return bpf.LoadAbsolute{Off: 16 + 8*n, Size: 4} }

// oneOf refuses the listed values of the loaded word and allows all others.
func oneOf(no bpf.Instruction, values ...uint32) []bpf.Instruction { return match(no, allow, values) }

// except allows the listed values of the loaded word and refuses all others.
func except(no bpf.Instruction, values ...uint32) []bpf.Instruction { return match(allow, no, values) }

func match(hit, miss bpf.Instruction, values []uint32) []bpf.Instruction {
	var p []bpf.Instruction
	for i, v := range values {
		p = append(p, bpf.JumpIf{Cond: bpf.JumpEqual, Val: v, SkipTrue: uint8(len(values) - i)})
	}
	return append(p, miss, hit)
}

func flags(mask uint32) []bpf.Instruction {
	return []bpf.Instruction{arg(0), bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: mask, SkipTrue: 1}, allow, refuse(unix.EPERM)}
}

// rules lists the calls whose arguments matter. Each program ends in a verdict.
func rules() map[uint32][]bpf.Instruction {
	// Devices cannot be created in a user namespace, but whiteouts, which overlays take
	// for deletions, can.
	node := func(mode uint32) []bpf.Instruction {
		return append([]bpf.Instruction{arg(mode), bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: unix.S_IFMT}},
			oneOf(refuse(unix.EPERM), unix.S_IFCHR, unix.S_IFBLK)...)
	}
	r := map[uint32][]bpf.Instruction{
		unix.SYS_CLONE:   flags(namespaces),
		unix.SYS_UNSHARE: flags(namespaces | unix.CLONE_NEWTIME),
		unix.SYS_SOCKET:  socketRule(),
		// A pair of any other family is two connected sockets of that family.
		unix.SYS_SOCKETPAIR:  append([]bpf.Instruction{arg(0)}, except(refuse(unix.EAFNOSUPPORT), unix.AF_UNIX)...),
		unix.SYS_SETSOCKOPT:  optionRule(),
		unix.SYS_GETSOCKOPT:  optionRule(),
		unix.SYS_IOCTL:       ioctlRule(),
		unix.SYS_PERSONALITY: append([]bpf.Instruction{arg(0)}, except(refuse(unix.EPERM), 0, 0x8, 0x20000, 0x20008, 0x40000, 0xffffffff)...),
		unix.SYS_MKNODAT:     node(2),
	}
	if mknod != 0 {
		r[mknod] = node(1)
	}
	return r
}

// perGroup is the number of calls that the filter compares one by one, and maxGroup the
// number of instructions that a jump can skip.
const (
	perGroup = 8
	maxGroup = 200
)

// filter assembles the program. The calls are sorted and in groups, of which all but
// one are skipped: the kernel runs the program once for each existing call when it is
// installed, and then for each call whose arguments matter.
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
		bpf.RetConstant{Val: unix.SECCOMP_RET_KILL_PROCESS}, // call numbers of another architecture
		bpf.LoadAbsolute{Off: 0, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpLessOrEqual, Val: ceiling, SkipTrue: 1}, // also excludes x32
		refuse(unix.ENOSYS),
	}
	for _, group := range groupCalls(all) {
		var body []bpf.Instruction
		for _, nr := range group {
			body = append(body, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: nr, SkipTrue: uint8(len(all[nr]))})
			body = append(body, all[nr]...)
		}
		if len(body) >= math.MaxUint8 {
			return nil, fmt.Errorf("assemble seccomp filter: a group of %d instructions cannot be skipped", len(body))
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

// groupCalls sorts the calls into groups whose rules can be skipped by one jump.
func groupCalls(all map[uint32][]bpf.Instruction) (groups [][]uint32) {
	size := 0
	for _, nr := range slices.Sorted(maps.Keys(all)) {
		n := len(groups) - 1
		if size += len(all[nr]) + 1; n < 0 || len(groups[n]) == perGroup || size > maxGroup {
			groups, size = append(groups, nil), len(all[nr])+1
			n++
		}
		groups[n] = append(groups[n], nr)
	}
	return groups
}

// Program returns the filter in the kernel's format. The hub assembles it once and
// sends it to init: assembling it would be a twentieth of init's work.
var Program = sync.OnceValues(func() (string, error) { return marshal(filter()) })

func marshal(raw []bpf.RawInstruction, err error) (string, error) {
	if err != nil {
		return "", err
	}
	var b []byte
	for _, r := range raw {
		b = binary.NativeEndian.AppendUint16(b, r.Op)
		b = binary.NativeEndian.AppendUint32(append(b, r.Jt, r.Jf), r.K)
	}
	return string(b), nil
}

// Install installs a filter irrevocably on all threads, and notifications on the calling thread and its children. It
// sets no_new_privs unless setuid programs must work. It returns the descriptor of the notifications.
func Install(program, notifications string, setuid bool) (listener int, err error) {
	if !setuid {
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return -1, fmt.Errorf("set no_new_privs: %w", err)
		}
	}
	if _, err := install(program, unix.SECCOMP_FILTER_FLAG_TSYNC|unix.SECCOMP_FILTER_FLAG_TSYNC_ESRCH); err != nil {
		return -1, err
	}
	return Notify(notifications)
}

// Notify installs only notifications, on the calling thread and its children. It requires CAP_SYS_ADMIN or no_new_privs. It
// returns the descriptor of the notifications.
func Notify(notifications string) (listener int, err error) {
	return install(notifications, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER)
}

func install(program string, flags uintptr) (int, error) {
	prog := make([]unix.SockFilter, len(program)/unix.SizeofSockFilter)
	if len(prog) == 0 {
		return -1, errors.New("set seccomp filter: it is empty")
	}
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&prog[0])), len(program)), program)
	fprog := unix.SockFprog{Len: uint16(len(prog)), Filter: &prog[0]}
	fd, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&fprog)))
	if errno != 0 {
		return -1, fmt.Errorf("set seccomp filter: %w", errno)
	}
	return int(fd), nil
}
