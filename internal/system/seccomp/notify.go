package seccomp

import (
	"fmt"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// notify lets init decide on a call.
var notify = bpf.RetConstant{Val: unix.SECCOMP_RET_USER_NOTIF}

// notifications assembles the filter that passes calls to init. All of them are permitted by the other filter. Init itself
// makes them without a notification, because it would wait for itself.
//
// With outbound, init connects programs to the outside. It needs no notification of messages to an address: the sandbox has no
// route, so the kernel refuses them, and DNS clients either connect or send to the address of the resolver inside.
func notifications(outbound bool) ([]bpf.RawInstruction, error) {
	socket := []bpf.Instruction{arg(0),
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.AF_NETLINK, SkipTrue: 1},
		notify,
	}
	if outbound {
		socket = append(socket, datagram...)
	}
	p := append([]bpf.Instruction{bpf.LoadAbsolute{Off: 0, Size: 4}}, onCall(unix.SYS_SOCKET, append(socket, allow))...)
	if outbound {
		p = append(p, onCall(unix.SYS_CONNECT, []bpf.Instruction{notify})...)
	}
	return assemble(p)
}

// runtimeNotifications assembles the filter for a runtime with its own kernel, which passes connections of programs to init.
//
// Gvisor uses notifications itself if it can, and ends if another filter of the thread does. A flag that the kernel does not
// support makes it use other means.
func runtimeNotifications() ([]bpf.RawInstruction, error) {
	listener := []bpf.Instruction{arg(0),
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.SECCOMP_SET_MODE_FILTER, SkipTrue: 3},
		arg(1),
		bpf.JumpIf{Cond: bpf.JumpBitsNotSet, Val: unix.SECCOMP_FILTER_FLAG_NEW_LISTENER, SkipTrue: 1},
		refuse(unix.EINVAL),
		allow,
	}
	return assemble(append(connections(), onCall(unix.SYS_SECCOMP, listener)...))
}

// connections notifies of calls that connect to the outside.
func connections() []bpf.Instruction {
	p := append([]bpf.Instruction{bpf.LoadAbsolute{Off: 0, Size: 4}},
		onCall(unix.SYS_SOCKET, append(append([]bpf.Instruction{arg(0)}, datagram...), allow))...)
	return append(p, onCall(unix.SYS_CONNECT, []bpf.Instruction{notify})...)
}

// containerNotifications assembles the filter for programs in a container, which has filters of its engine.
func containerNotifications() ([]bpf.RawInstruction, error) { return assemble(connections()) }

// podNotifications assembles the filter for programs in a Pod, whose network has a route. Init creates all sockets that could
// reach the outside, and confines them; see package referee. So no call may create one in another way, and none may remove
// the confinement.
func podNotifications() ([]bpf.RawInstruction, error) {
	socket := []bpf.Instruction{arg(0),
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.AF_INET, SkipTrue: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.AF_INET6, SkipTrue: 3},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.AF_UNIX, SkipTrue: 3},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.AF_NETLINK, SkipTrue: 2},
		refuse(unix.EAFNOSUPPORT),
		notify,
		allow,
	}
	send := []bpf.Instruction{arg(4), // a message without an address is for a connected socket
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: 0, SkipTrue: 2},
		bpf.LoadAbsolute{Off: 16 + 8*4 + 4, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: 0, SkipTrue: 1},
		notify,
		allow,
	}
	// A message that connects waits for a reply of the loopback interface if its address is outside.
	fastOpen := func(flags uint32) []bpf.Instruction {
		return []bpf.Instruction{arg(flags),
			bpf.JumpIf{Cond: bpf.JumpBitsNotSet, Val: unix.MSG_FASTOPEN, SkipTrue: 1},
			refuse(unix.EOPNOTSUPP),
			allow,
		}
	}
	option := []bpf.Instruction{arg(1),
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.SOL_SOCKET, SkipTrue: 3},
		arg(2),
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.SO_DONTROUTE, SkipTrue: 1},
		refuse(unix.EPERM),
		allow,
	}
	const x32 = 0x40000000 // in numbers of calls of amd64
	p := []bpf.Instruction{
		bpf.LoadAbsolute{Off: 4, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: auditArch, SkipTrue: 2},
		bpf.LoadAbsolute{Off: 0, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpBitsNotSet, Val: x32, SkipTrue: 1},
		refuse(unix.ENOSYS),
	}
	for _, call := range []uint32{unix.SYS_CONNECT, unix.SYS_BIND, unix.SYS_LISTEN} {
		p = append(p, onCall(call, []bpf.Instruction{notify})...)
	}
	p = append(p, onCall(unix.SYS_SOCKET, socket)...)
	p = append(p, onCall(unix.SYS_SENDTO, send)...)
	p = append(p, onCall(unix.SYS_SENDMSG, fastOpen(2))...)
	p = append(p, onCall(unix.SYS_SENDMMSG, fastOpen(3))...)
	p = append(p, onCall(unix.SYS_SETSOCKOPT, option)...)
	return assemble(append(p, onCall(unix.SYS_IO_URING_SETUP, []bpf.Instruction{refuse(unix.ENOSYS)})...))
}

// datagram notifies of sockets for datagrams, whose family is loaded: the resolver must listen before a program sends a query.
// The next instruction decides on all others.
var datagram = []bpf.Instruction{
	bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.AF_INET, SkipTrue: 2},
	bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.AF_INET6, SkipTrue: 1},
	allow,
	arg(1), bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: 0xf},
	bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.SOCK_DGRAM, SkipTrue: 1},
	notify,
}

// onCall decides on the call nr, whose number is loaded.
func onCall(nr uint32, rule []bpf.Instruction) []bpf.Instruction {
	return append([]bpf.Instruction{bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: nr, SkipTrue: uint8(len(rule))}}, rule...)
}

// assemble assembles a program that allows all calls on which it does not decide.
func assemble(p []bpf.Instruction) ([]bpf.RawInstruction, error) {
	raw, err := bpf.Assemble(append(p, allow))
	if err != nil {
		return nil, fmt.Errorf("assemble seccomp notifications: %w", err)
	}
	return raw, nil
}

// Notifications returns the filter that passes calls to init, in the kernel's format. With outbound, it includes those that
// connect to the outside.
func Notifications(outbound bool) (string, error) { return marshal(notifications(outbound)) }

// ContainerNotifications is Notifications for a container.
func ContainerNotifications() (string, error) { return marshal(containerNotifications()) }

// PodNotifications is Notifications for a Pod.
func PodNotifications() (string, error) { return marshal(podNotifications()) }

// RuntimeNotifications is Notifications for a runtime with its own kernel, such as gVisor.
func RuntimeNotifications() (string, error) { return marshal(runtimeNotifications()) }
