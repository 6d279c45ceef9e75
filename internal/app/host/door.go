package host

import (
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"
)

// doorTimeout is the time within which a connection must send the word. maxUnverified is the
// maximum number of connections that have not sent it yet.
const (
	doorTimeout   = 5 * time.Second
	maxUnverified = 64
)

// ListenDoor listens on a loopback address, host:port/word, instead of a Unix socket. A connection
// must begin with the word and is then treated like one over the socket. Web pages can connect,
// but their requests do not begin with the word.
func ListenDoor(door, socket string) (net.Listener, error) {
	address, word, _ := strings.Cut(door, "/")
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("cannot listen on %s: %w", address, err)
	}
	d := &doorListener{Listener: l, word: word, at: &net.UnixAddr{Net: "unix", Name: strings.TrimPrefix(socket, "unix:")},
		in: make(chan net.Conn), closed: make(chan struct{}), unverified: make(chan struct{}, maxUnverified)}
	go d.run()
	return d, nil
}

// doorListener accepts the connections that begin with a word.
type doorListener struct {
	net.Listener
	word       string
	at         net.Addr
	in         chan net.Conn
	unverified chan struct{} // has one element for each connection that has not sent the word yet
	closed     chan struct{} // closed when run has ended
	once       sync.Once
	failed     error // set before closed is closed
}

func (d *doorListener) run() {
	defer close(d.closed)
	for {
		c, err := d.Listener.Accept()
		if err != nil {
			if t, ok := err.(interface{ Temporary() bool }); ok && t.Temporary() {
				continue
			}
			d.failed = err
			return
		}
		select {
		case d.unverified <- struct{}{}:
			go d.admit(c)
		default:
			c.Close()
		}
	}
}

// admit reads the word.
func (d *doorListener) admit(c net.Conn) {
	got := make([]byte, len(d.word))
	c.SetReadDeadline(time.Now().Add(doorTimeout))
	_, err := io.ReadFull(c, got)
	<-d.unverified
	if err != nil || string(got) != d.word {
		c.Close()
		return
	}
	c.SetReadDeadline(time.Time{})
	select {
	case d.in <- doorConn{c, d.at}:
	case <-d.closed:
		c.Close()
	}
}

// Accept implements net.Listener.
func (d *doorListener) Accept() (net.Conn, error) {
	select {
	case c := <-d.in:
		return c, nil
	case <-d.closed:
		return nil, d.failed
	}
}

// Close implements net.Listener.
func (d *doorListener) Close() error {
	err := net.ErrClosed
	d.once.Do(func() { err = d.Listener.Close() })
	return err
}

// Addr implements net.Listener.
func (d *doorListener) Addr() net.Addr { return d.at }

// doorConn is a connection that is treated like one over the socket.
type doorConn struct {
	net.Conn
	at net.Addr
}

// LocalAddr implements net.Conn.
func (c doorConn) LocalAddr() net.Addr { return c.at }

// RemoteAddr implements net.Conn.
func (c doorConn) RemoteAddr() net.Addr { return &net.UnixAddr{Net: "unix", Name: "@"} }
