package control

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/system/isolate/entrance"
)

// dialTimeout bounds one Dial inside. On a loopback it is ample.
const dialTimeout = 10 * time.Second

// Server answers Dial, Save and Freeze inside a sandbox.
type Server struct {
	// Door says that the server inside may serve at Door instead of ServerSocket.
	Door bool
	// Save saves the program in an open folder. If it is nil, Save is refused.
	Save func(folder int) error
	// Freeze suspends all processes, or continues them. If it is nil, Freeze is refused.
	Freeze func(on bool) error

	server *entrance.Entrance
	saves  sync.WaitGroup
}

// Serve answers until the listener is closed.
func (s *Server) Serve(l net.Listener) {
	s.server = entrance.New(ServerSocket)
	slots := make(chan struct{}, 64)
	for {
		c, err := l.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			// Most likely out of descriptors: retry when others are closed.
			time.Sleep(10 * time.Millisecond)
			continue
		}
		slots <- struct{}{}
		go func() {
			defer func() { c.Close(); <-slots }()
			s.answer(c.(*net.UnixConn))
		}()
	}
}

// Wait waits for the replies to Save.
func (s *Server) Wait() { s.saves.Wait() }

// answer answers one request: a port to dial or, with a descriptor, a verb.
func (s *Server) answer(c *net.UnixConn) {
	c.SetDeadline(time.Now().Add(dialTimeout))
	var port [2]byte
	oob := make([]byte, unix.CmsgSpace(4))
	n, oobn, _, _, err := c.ReadMsgUnix(port[:], oob)
	if err != nil || n == 0 {
		return
	}
	if _, err := io.ReadFull(c, port[n:]); err != nil {
		return
	}
	if oobn > 0 {
		c.SetDeadline(time.Time{})
		s.answerVerb(c, verb(binary.BigEndian.Uint16(port[:])), oob[:oobn])
		return
	}
	dial := func() (*os.File, error) { return dialPort(int(binary.BigEndian.Uint16(port[:]))) }
	if port == [2]byte{} {
		dial = s.dialServer
	}
	f, err := dial()
	if err != nil {
		c.Write(append([]byte{refused}, err.Error()...))
		return
	}
	defer f.Close()
	c.WriteMsgUnix([]byte{dialed}, unix.UnixRights(int(f.Fd())), nil)
}

func (s *Server) answerVerb(c *net.UnixConn, what verb, oob []byte) {
	s.saves.Add(1)
	defer s.saves.Done()
	reply, err := s.perform(what, oob)
	if err == nil {
		c.Write([]byte{reply})
		return
	}
	text := err.Error()
	c.Write(append([]byte{refused}, text[:min(len(text), maxSaveError)]...))
}

// perform performs a verb and closes the file that was sent with it.
func (s *Server) perform(what verb, oob []byte) (reply byte, err error) {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil || len(msgs) != 1 {
		return 0, errors.New("no file was sent")
	}
	fds, err := unix.ParseUnixRights(&msgs[0])
	if err != nil || len(fds) != 1 {
		return 0, errors.New("no file was sent")
	}
	defer unix.Close(fds[0])
	switch {
	case what == verbSave && s.Save == nil:
		return 0, errors.New("requires gVisor")
	case what == verbSave:
		return saved, s.Save(fds[0])
	case (what == verbFreeze || what == verbThaw) && s.Freeze != nil:
		return done, s.Freeze(what == verbFreeze)
	}
	return 0, errors.New("not supported by this init")
}

func (s *Server) dialServer() (*os.File, error) {
	ctx, cancel := context.WithTimeout(context.Background(), dialTimeout/2)
	defer cancel()
	c, err := s.server.Dial(ctx)
	if s.Door && errors.Is(err, unix.ENOENT) {
		return dialDoor()
	}
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return c.File()
}

func dialDoor() (*os.File, error) {
	c, err := net.DialTimeout("tcp", Door, dialTimeout/2)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	if _, err := io.WriteString(c, DoorWord); err != nil {
		return nil, err
	}
	return c.(*net.TCPConn).File()
}

// dialPort tries both loopback addresses, because servers differ.
func dialPort(port int) (*os.File, error) {
	var first error
	for _, host := range []string{"127.0.0.1", "::1"} {
		c, err := net.DialTimeout("tcp", net.JoinHostPort(host, strconv.Itoa(port)), dialTimeout/2)
		if err == nil {
			defer c.Close()
			return c.(*net.TCPConn).File()
		}
		if first == nil {
			first = err
		}
	}
	return nil, first
}
