package egress

import (
	"net"

	"golang.org/x/sys/unix"
)

// progress returns how much a connection has sent and received according to the kernel.
func progress(c net.Conn) (sent, received int64) {
	t, ok := c.(*net.TCPConn)
	if !ok {
		return 0, 0
	}
	raw, err := t.SyscallConn()
	if err != nil {
		return 0, 0
	}
	raw.Control(func(fd uintptr) {
		if info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			sent, received = int64(info.Bytes_acked), int64(info.Bytes_received)
		}
	})
	return sent, received
}
