// Package entrance connects to the server inside a sandbox, and to no process that impersonates it.
package entrance

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// ErrImpostor means that another process than before serves the socket of the server.
var ErrImpostor = errors.New("another process serves the server's socket while the server runs; restart the sandbox")

// Entrance connects to the server inside a sandbox at a unix socket that the server has created.
// Every program of the same user can replace the socket. So Entrance connects only to the first
// process that served there, until that process ends: the server starts before all other
// programs. Use New to create an Entrance.
type Entrance struct {
	path string

	mu     sync.Mutex
	pid    int      // of the server; 0 before the first connection
	server *os.File // its pidfd; nil where the kernel has none
}

// New returns the entrance at a path.
func New(path string) *Entrance { return &Entrance{path: path} }

// Dial connects to the server.
func (e *Entrance) Dial(ctx context.Context) (*net.UnixConn, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", e.path)
	if err != nil {
		return nil, err
	}
	u := c.(*net.UnixConn)
	if err := e.check(u); err != nil {
		u.Close()
		return nil, err
	}
	return u, nil
}

// check compares the process that listens with the first one.
func (e *Entrance) check(c *net.UnixConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var peer *unix.Ucred
	var failed error
	err = raw.Control(func(fd uintptr) { peer, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err = errors.Join(err, failed); err != nil {
		return fmt.Errorf("find the process of the server: %w", err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case peer.Pid <= 0:
		return ErrImpostor // in a parent process namespace, where no server runs
	case e.runs() && int(peer.Pid) != e.pid:
		return ErrImpostor
	case e.runs():
		return nil
	}
	if e.server != nil {
		e.server.Close()
	}
	e.pid, e.server = int(peer.Pid), nil
	if fd, err := unix.PidfdOpen(e.pid, 0); err == nil {
		e.server = os.NewFile(uintptr(fd), "server")
	}
	return nil
}

// runs reports whether the first server has not ended yet.
func (e *Entrance) runs() bool {
	if e.pid == 0 {
		return false
	}
	if e.server == nil {
		return unix.Kill(e.pid, 0) != unix.ESRCH
	}
	p := []unix.PollFd{{Fd: int32(e.server.Fd()), Events: unix.POLLIN}}
	n, err := unix.Poll(p, 0)
	return err != nil || n == 0
}
