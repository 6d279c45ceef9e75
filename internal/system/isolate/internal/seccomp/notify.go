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
	netlink := []bpf.Instruction{arg(0),
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.AF_NETLINK, SkipTrue: 1},
		notify,
	}
	datagram := []bpf.Instruction{ // the resolver must listen before a program sends a query
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.AF_INET, SkipTrue: 2},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.AF_INET6, SkipTrue: 1},
		allow,
		arg(1), bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: 0xf},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.SOCK_DGRAM, SkipTrue: 1},
		notify,
	}
	socket := netlink
	if outbound {
		socket = append(socket, datagram...)
	}
	socket = append(socket, allow)
	p := []bpf.Instruction{
		bpf.LoadAbsolute{Off: 0, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.SYS_SOCKET, SkipTrue: uint8(len(socket))},
	}
	p = append(p, socket...)
	if outbound {
		p = append(p, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.SYS_CONNECT, SkipTrue: 1}, notify)
	}
	raw, err := bpf.Assemble(append(p, allow))
	if err != nil {
		return nil, fmt.Errorf("assemble seccomp notifications: %w", err)
	}
	return raw, nil
}

// Notifications returns the filter that passes calls to init, in the kernel's format. With outbound, it includes those that
// connect to the outside.
func Notifications(outbound bool) (string, error) { return marshal(notifications(outbound)) }
