package socket

import (
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// egressListener accepts outgoing connections of a sandbox.
type egressListener struct {
	*net.UnixListener
	init func() int // PID of the sandbox's init
}

// TakeSocket receives the connection of a program, which the sandbox's init sends over c. It refuses other senders: a
// program that kept a copy of the descriptor could make it blocking, and with it threads of the hub.
func (l *egressListener) TakeSocket(c net.Conn) (net.Conn, error) {
	from, ok := c.(*net.UnixConn)
	if !ok {
		return nil, errors.New("receive a connection: not a Unix socket")
	}
	if err := l.checkSender(from); err != nil {
		return nil, err
	}
	oob := make([]byte, unix.CmsgSpace(4))
	_, n, flags, _, err := from.ReadMsgUnix(make([]byte, 1), oob)
	if err != nil {
		return nil, err
	}
	msgs, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil || len(msgs) != 1 || flags&unix.MSG_CTRUNC != 0 {
		return nil, errors.New("receive a connection: no descriptor was sent")
	}
	fds, err := unix.ParseUnixRights(&msgs[0])
	if err != nil || len(fds) != 1 {
		return nil, errors.New("receive a connection: no descriptor was sent")
	}
	f := os.NewFile(uintptr(fds[0]), "connection")
	defer f.Close()
	return net.FileConn(f)
}

// checkSender returns an error unless the sandbox's init has opened the connection.
func (l *egressListener) checkSender(c *net.UnixConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var cred *unix.Ucred
	var failed error
	if err := raw.Control(func(fd uintptr) { cred, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil {
		return err
	}
	if failed != nil {
		return failed
	}
	if init := l.init(); init <= 0 || int(cred.Pid) != init {
		return fmt.Errorf("receive a connection: process %d is not the init of the sandbox", cred.Pid)
	}
	return nil
}
