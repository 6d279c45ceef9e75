package host

import (
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"
)

// doorWait is how long a connection may take to begin with the word, and doorCrowd how many
// may be about to.
const (
	doorWait  = 5 * time.Second
	doorCrowd = 64
)

// ListenDoor listens at a loopback address, host:port/word, in the place of a Unix socket:
// a connection must begin with the word and is then like one over the socket. Web pages can
// connect, too, but what they send begins otherwise.
func ListenDoor(door, socket string) (net.Listener, error) {
	address, word, _ := strings.Cut(door, "/")
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", address, err)
	}
	d := &doorListener{Listener: l, word: word, at: &net.UnixAddr{Net: "unix", Name: strings.TrimPrefix(socket, "unix:")},
		in: make(chan net.Conn), closed: make(chan struct{}), crowd: make(chan struct{}, doorCrowd)}
	go d.run()
	return d, nil
}

// doorListener accepts the connections that begin with a word.
type doorListener struct {
	net.Listener
	word   string
	at     net.Addr
	in     chan net.Conn
	crowd  chan struct{} // holds one for each connection that has not said the word yet
	closed chan struct{} // when run has ended
	once   sync.Once
	failed error // from closed on
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
		case d.crowd <- struct{}{}:
			go d.admit(c)
		default:
			c.Close()
		}
	}
}

// admit reads the word.
func (d *doorListener) admit(c net.Conn) {
	got := make([]byte, len(d.word))
	c.SetReadDeadline(time.Now().Add(doorWait))
	_, err := io.ReadFull(c, got)
	<-d.crowd
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

// doorConn is a connection that counts as one over the socket.
type doorConn struct {
	net.Conn
	at net.Addr
}

// LocalAddr implements net.Conn.
func (c doorConn) LocalAddr() net.Addr { return c.at }

// RemoteAddr implements net.Conn.
func (c doorConn) RemoteAddr() net.Addr { return &net.UnixAddr{Net: "unix", Name: "@"} }
