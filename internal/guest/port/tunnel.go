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

// TunnelIn names a port.
type TunnelIn struct {
	Port int `path:"port" minimum:"1" maximum:"65535" doc:"TCP port that a program in the sandbox listens on"`
}

const (
	dialTimeout = 10 * time.Second
	chunk       = 32 << 10
	// endOfInput is the text message that ends one direction.
	endOfInput = "end"
)

// Close codes of WebSockets.
const (
	closeNormal = 1000
	closeFailed = 1011
)

// Tunnel connects the caller with a TCP port of the sandbox. Binary messages are bytes of the
// connection; the text message "end" ends one direction of it. Messages wait for a slow
// reader on either side.
func (s *Service) Tunnel(ctx context.Context, in TunnelIn, c op.Conn) error {
	if s.cfg.Hidden(in.Port) {
		return op.Errorf(op.Denied, "port %d belongs to the sandbox itself", in.Port)
	}
	tcp, err := dialPort(ctx, in.Port)
	if err != nil {
		return c.Close(closeFailed, "nothing listens on port "+strconv.Itoa(in.Port)+" in the sandbox")
	}
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
	err = send(ctx, c, tcp)
	if err == nil {
		// The program has said everything; what the caller still sends may be for it.
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
	// localhost is both addresses, whichever the program listens on.
	c, err := d.DialContext(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		c, err = d.DialContext(ctx, "tcp", net.JoinHostPort("::1", strconv.Itoa(port)))
	}
	if err != nil {
		return nil, err
	}
	return c.(*net.TCPConn), nil
}

// send sends what the program says, and the end of it.
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

// receive writes what the caller says to the program, until the end of it.
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
