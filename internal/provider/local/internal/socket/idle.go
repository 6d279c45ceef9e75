package socket

import (
	"errors"
	"net"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// idle keeps one open connection per sandbox for a short time.
type idle struct {
	mu    sync.Mutex
	conns map[string]net.Conn
}

// idleTime is how long a connection is kept.
const idleTime = time.Second

// put keeps a connection, and closes a previous one.
func (i *idle) put(id string, c net.Conn) {
	i.mu.Lock()
	old := i.conns[id]
	if i.conns == nil {
		i.conns = map[string]net.Conn{}
	}
	i.conns[id] = c
	i.mu.Unlock()
	if old != nil {
		old.Close()
	}
	time.AfterFunc(idleTime, func() {
		i.mu.Lock()
		defer i.mu.Unlock()
		if i.conns[id] == c {
			delete(i.conns, id)
			c.Close()
		}
	})
}

// take removes and returns the connection to a sandbox, if it is usable.
func (i *idle) take(id string) net.Conn {
	i.mu.Lock()
	c := i.conns[id]
	delete(i.conns, id)
	i.mu.Unlock()
	if c != nil && !isIdle(c) {
		c.Close()
		return nil
	}
	return c
}

// isIdle reports whether a connection is open and nothing was sent on it.
func isIdle(c net.Conn) bool {
	s, ok := c.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return false
	}
	var got error
	err = raw.Read(func(fd uintptr) bool {
		_, _, got = unix.Recvfrom(int(fd), make([]byte, 1), unix.MSG_PEEK|unix.MSG_DONTWAIT)
		return true
	})
	return err == nil && errors.Is(got, unix.EAGAIN)
}

func (i *idle) close() {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, c := range i.conns {
		c.Close()
	}
	clear(i.conns)
}
