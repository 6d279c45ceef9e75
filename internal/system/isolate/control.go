package isolate

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/system/isolate/entrance"
)

// The first byte of the answer to Dial and Save.
const (
	dialed  = 0
	refused = 1
	saved   = 2
)

// dialTimeout bounds one Dial in init. On a loopback it is ample.
const dialTimeout = 10 * time.Second

// serveControl serves the control socket, to which nobody inside has access.
func (i *initProcess) serveControl() {
	l, err := net.FileListener(os.NewFile(fdControl, "control"))
	if err != nil {
		return
	}
	(&controller{server: entrance.New(ServerSocket), door: i.runtime, save: i.answerSave}).serve(l)
}

// ServeControl connects to ports inside for whoever dials a unix socket, for Dial. It passes
// the connection itself, so it carries no traffic. It ends when the listener is closed.
func ServeControl(l net.Listener) {
	// It saves nothing: answerSave refuses, and closes what was sent.
	(&controller{server: entrance.New(ServerSocket), save: new(initProcess).answerSave}).serve(l)
}

// controller answers at a control socket.
type controller struct {
	server *entrance.Entrance
	door   bool // the server may be at Door instead
	save   func(c *net.UnixConn, rights []byte)
}

func (s *controller) serve(l net.Listener) {
	slots := make(chan struct{}, 64)
	for {
		c, err := l.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			// Most likely out of descriptors; some will be closed.
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

// answer answers one request: a port to dial or, with a folder, to save the program in it.
func (s *controller) answer(c *net.UnixConn) {
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
		s.save(c, oob[:oobn])
		return
	}
	dial := func() (*os.File, error) { return dialInside(int(binary.BigEndian.Uint16(port[:]))) }
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

// ServerSocket is where a program inside may serve a unix socket. Dial reaches it as
// port 0. Whatever a name there leads to is inside, too.
const ServerSocket = "/run/aio/aio.sock"

func (s *controller) dialServer() (*os.File, error) {
	ctx, cancel := context.WithTimeout(context.Background(), dialTimeout/2)
	defer cancel()
	c, err := s.server.Dial(ctx)
	if s.door && errors.Is(err, unix.ENOENT) {
		return dialDoor()
	}
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return c.File()
}

// Door is where a program serves that cannot be given a unix socket: gVisor cannot save
// one. Each connection must begin with DoorWord, which no web page can make a browser send,
// and is from then on like one over ServerSocket.
const (
	Door     = "127.0.0.1:61080"
	DoorWord = "cove-init"
)

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

// dialInside tries both loopback addresses, because servers differ.
func dialInside(port int) (*os.File, error) {
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

// Dial connects to a TCP port on the loopback inside the sandbox whose control
// socket is called name in dir, or to its ServerSocket if port is 0.
func Dial(ctx context.Context, dir *os.File, name string, port int) (net.Conn, error) {
	c, err := DialUnix(ctx, dir, name)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { c.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	fail := func(err error) (net.Conn, error) {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, fmt.Errorf("dial port %d inside: %w", port, err)
	}
	if _, err := c.Write(binary.BigEndian.AppendUint16(nil, uint16(port))); err != nil {
		return fail(err)
	}
	answer, oob := make([]byte, 512), make([]byte, unix.CmsgSpace(4))
	n, oobn, _, _, err := c.ReadMsgUnix(answer, oob)
	if err != nil {
		return fail(err)
	}
	if n == 0 {
		return fail(io.ErrUnexpectedEOF)
	}
	if answer[0] != dialed {
		return fail(errors.New(string(answer[1:n])))
	}
	conn, err := receiveConn(oob[:oobn])
	if err != nil {
		return fail(err)
	}
	return conn, nil
}

func receiveConn(oob []byte) (net.Conn, error) {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	if len(msgs) != 1 {
		return nil, errors.New("init sent no connection")
	}
	fds, err := unix.ParseUnixRights(&msgs[0])
	if err != nil {
		return nil, err
	}
	if len(fds) != 1 {
		return nil, errors.New("init sent no connection")
	}
	f := os.NewFile(uintptr(fds[0]), "inside")
	defer f.Close()
	return net.FileConn(f)
}
