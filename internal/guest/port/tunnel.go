package port

import (
	"context"
	"errors"
	"io"
	"net"
	"strconv"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
)

// TunnelIn is the input of Tunnel.
type TunnelIn struct {
	Port int `path:"port" minimum:"1" maximum:"65535" doc:"TCP port that a program in the sandbox listens on"`
}

const (
	dialTimeout = 10 * time.Second
	chunk       = 32 << 10
	// endOfInput is the text message that closes one direction.
	endOfInput = "end"
)

// Close codes of WebSockets.
const (
	closeNormal = 1000
	closeFailed = 1011
)

// Tunnel connects the caller with a TCP port of the sandbox. Binary messages contain bytes of the connection; the text message
// "end" closes one direction. A slow reader on either side slows down the sender.
func (s *Service) Tunnel(ctx context.Context, in TunnelIn, c op.Conn) error {
	if s.cfg.Hidden(in.Port) {
		return op.Errorf(op.Denied, "port %d is reserved for the sandbox", in.Port)
	}
	tcp, err := dialPort(ctx, in.Port)
	if err != nil {
		return c.Close(closeFailed, "nothing listens on port "+strconv.Itoa(in.Port)+" in the sandbox")
	}
	return s.join(ctx, c, tcp)
}

// join connects a WebSocket with a connection until both directions have ended or one fails, and closes both.
func (s *Service) join(ctx context.Context, c op.Conn, tcp *net.TCPConn) error {
	defer tcp.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.life, cancel)()
	defer context.AfterFunc(ctx, func() { tcp.Close() })()
	received := make(chan error, 1)
	go func() {
		err := receive(ctx, c, tcp)
		if err != nil {
			cancel()
		}
		received <- err
	}()
	err := send(ctx, c, tcp)
	if err == nil {
		// The program has closed its direction; the caller may still send.
		select {
		case <-received:
		case <-ctx.Done():
		}
	}
	closed := c.Close(closeNormal, "")
	cancel()
	return closed
}

func dialPort(ctx context.Context, port int) (*net.TCPConn, error) {
	d := net.Dialer{Timeout: dialTimeout}
	// The program may listen on either loopback address.
	c, err := d.DialContext(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		c, err = d.DialContext(ctx, "tcp", net.JoinHostPort("::1", strconv.Itoa(port)))
	}
	if err != nil {
		return nil, err
	}
	return c.(*net.TCPConn), nil
}

// send forwards bytes of the program to the caller, and then the end.
func send(ctx context.Context, c op.Conn, tcp *net.TCPConn) error {
	buf := make([]byte, chunk)
	for {
		n, err := tcp.Read(buf)
		if n > 0 {
			if err := c.Write(ctx, buf[:n], false); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return c.Write(ctx, []byte(endOfInput), true)
		}
		if err != nil {
			return err
		}
	}
}

// receive forwards bytes of the caller to the program, until the end.
func receive(ctx context.Context, c op.Conn, tcp *net.TCPConn) error {
	for {
		b, text, err := c.Read(ctx)
		if err != nil {
			return err
		}
		if text {
			if string(b) != endOfInput {
				return op.Errorf(op.Invalid, "unexpected text message; send bytes as binary messages")
			}
			return tcp.CloseWrite()
		}
		if _, err := tcp.Write(b); err != nil {
			return err
		}
	}
}
