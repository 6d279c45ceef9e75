package tunnel

import (
	"context"
	"io"
	"net"
	"sync"
	"time"
)

// While programs are suspended, the hub sends bytes: a keepalive in intervals, so that an unreachable hub is detected, and
// finally a byte that resumes the programs.
const (
	keepalive         = 0
	resume            = 1
	keepaliveInterval = 20 * time.Second
	// suspendTime bounds the time until programs are suspended and their data is on the disk.
	suspendTime = 5 * time.Minute
)

// Suspend suspends all programs of the sandbox, with their data synced to the disk, until release is called or ctx or
// the hub ends. Release returns nil if the programs were suspended until then.
func (c *Client) Suspend(ctx context.Context) (release func() error, err error) {
	conn, err := c.request(ctx, verbHold, 0, true)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { conn.NetConn().Close() })
	// The second response means that the programs are suspended and their data is synced.
	conn.SetReadDeadline(time.Now().Add(suspendTime))
	if err := readResponse(conn); err != nil {
		stop()
		conn.Close()
		return nil, causeOf(ctx, err)
	}
	ended := make(chan struct{})
	var work sync.WaitGroup
	work.Go(func() {
		for {
			select {
			case <-ended:
				return
			case <-time.After(keepaliveInterval):
			}
			conn.SetWriteDeadline(time.Now().Add(keepaliveInterval))
			if _, err := conn.Write([]byte{keepalive}); err != nil {
				return
			}
		}
	})
	return sync.OnceValue(func() error {
		defer conn.Close()
		defer stop()
		close(ended)
		work.Wait()
		conn.SetDeadline(time.Now().Add(stallTime))
		_, err := conn.Write([]byte{resume})
		if err == nil {
			err = readResponse(conn)
		}
		return causeOf(ctx, err)
	}), nil
}

func (s *Server) hold(c net.Conn) {
	if s.cfg.Suspend == nil {
		refuse(c, "this sandbox cannot suspend its programs")
		return
	}
	if _, err := c.Write([]byte{granted}); err != nil {
		return
	}
	resumePrograms, err := s.cfg.Suspend()
	if err != nil {
		refuse(c, err.Error())
		return
	}
	defer resumePrograms()
	c.SetWriteDeadline(time.Now().Add(handshakeTime))
	if _, err := c.Write([]byte{granted}); err != nil {
		return
	}
	for received := [1]byte{keepalive}; received[0] != resume; {
		c.SetReadDeadline(time.Now().Add(stallTime))
		if _, err := io.ReadFull(c, received[:]); err != nil {
			return // the hub has disconnected
		}
	}
	resumePrograms()
	respond(c, nil)
}
