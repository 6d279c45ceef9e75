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
)

// How init answers Dial.
const (
	dialed  = 0
	refused = 1
)

// dialTimeout bounds what init does for one Dial. On a loopback it is ample.
const dialTimeout = 10 * time.Second

// serveControl connects to ports inside for whoever holds the control socket,
// which nobody inside can reach. It hands over the connection itself, so init
// carries no traffic.
func serveControl() {
	l, err := net.FileListener(os.NewFile(fdControl, "control"))
	if err != nil {
		return
	}
	slots := make(chan struct{}, 64)
	for {
		c, err := l.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			// Out of descriptors, most likely: some will come back.
			time.Sleep(10 * time.Millisecond)
			continue
		}
		slots <- struct{}{}
		go func() {
			defer func() { c.Close(); <-slots }()
			answerDial(c.(*net.UnixConn))
		}()
	}
}

func answerDial(c *net.UnixConn) {
	c.SetDeadline(time.Now().Add(dialTimeout))
	var port [2]byte
	if _, err := io.ReadFull(c, port[:]); err != nil {
		return
	}
	f, err := dialInside(int(binary.BigEndian.Uint16(port[:])))
	if err != nil {
		c.Write(append([]byte{refused}, err.Error()...))
		return
	}
	defer f.Close()
	c.WriteMsgUnix([]byte{dialed}, unix.UnixRights(int(f.Fd())), nil)
}

// dialInside connects to either loopback address, since servers differ.
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
// socket is called name in dir.
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

// DialUnix connects to the unix socket called name in dir, and to nothing else:
// a symlink, or anything that is not a socket, is refused. Who can write to the
// folder can thus not make us connect to another server of the host. The path
// may be of any length.
func DialUnix(ctx context.Context, dir *os.File, name string) (*net.UnixConn, error) {
	raw, err := dir.SyscallConn()
	if err != nil {
		return nil, err
	}
	fd := -1
	var opened error
	if err := raw.Control(func(d uintptr) {
		fd, opened = unix.Openat2(int(d), name, &unix.OpenHow{Flags: unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC,
			Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS})
	}); err != nil {
		return nil, err
	}
	if opened != nil {
		return nil, fmt.Errorf("open socket %s: %w", name, opened)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("open socket %s: %w", name, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return nil, fmt.Errorf("open socket %s: it is no socket", name)
	}
	var c net.Conn
	netless(func() {
		var d net.Dialer
		c, err = d.DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d", fd))
	})
	if err != nil {
		return nil, err
	}
	return c.(*net.UnixConn), nil
}

// ListenUnix makes a unix socket called name in dir, in place of what was there.
func ListenUnix(dir *os.File, name string, mode os.FileMode) (*net.UnixListener, error) {
	raw, err := dir.SyscallConn()
	if err != nil {
		return nil, err
	}
	var l *net.UnixListener
	var failed error
	err = raw.Control(func(d uintptr) {
		if err := unix.Unlinkat(int(d), name, 0); err != nil && err != unix.ENOENT {
			failed = err
			return
		}
		path := fmt.Sprintf("/proc/self/fd/%d/%s", d, name)
		netless(func() { l, failed = net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: path}) })
		if failed == nil {
			l.SetUnlinkOnClose(false)
			failed = os.Chmod(path, mode)
		}
	})
	if err = errors.Join(err, failed); err != nil {
		if l != nil {
			l.Close()
		}
		return nil, fmt.Errorf("listen on %s: %w", name, err)
	}
	return l, nil
}
