package tunnel

import (
	"context"
	"io"
	"net"
	"sync"
	"time"
)

// While programs are held, the hub sends bytes: one from time to time, so that an end that has vanished is noticed, and a last
// one that lets them go on.
const (
	stillHeld = 0
	letGo     = 1
	heldTick  = 20 * time.Second
	// suspendTime is how long programs may take to stop, and what they wrote to reach the disk.
	suspendTime = 5 * time.Minute
)

// Suspend stops all programs of the sandbox, with what they wrote on the disk, until release is called, ctx ends or the
// hub does. Release returns nil if they were stopped until then.
func (c *Client) Suspend(ctx context.Context) (release func() error, err error) {
	conn, err := c.request(ctx, verbHold, 0, true)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { conn.NetConn().Close() })
	// They stop and write first, or it says why not. A sandbox that says nothing is not waited for.
	conn.SetReadDeadline(time.Now().Add(suspendTime))
	if err := readAnswer(conn); err != nil {
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
			case <-time.After(heldTick):
			}
			conn.SetWriteDeadline(time.Now().Add(heldTick))
			if _, err := conn.Write([]byte{stillHeld}); err != nil {
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
		_, err := conn.Write([]byte{letGo})
		if err == nil {
			err = readAnswer(conn)
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
	resume, err := s.cfg.Suspend()
	if err != nil {
		refuse(c, err.Error())
		return
	}
	defer resume()
	c.SetWriteDeadline(time.Now().Add(handshakeTime))
	if _, err := c.Write([]byte{granted}); err != nil {
		return
	}
	for said := [1]byte{stillHeld}; said[0] != letGo; {
		c.SetReadDeadline(time.Now().Add(stallTime))
		if _, err := io.ReadFull(c, said[:]); err != nil {
			return // the hub is gone
		}
	}
	resume()
	answerWith(c, nil)
}
