// Package control owns the control socket of a sandbox: clients connect through it to servers
// inside, have gVisor save the sandbox, and have init freeze it. A connection is passed as a descriptor, so the
// control socket carries no traffic.
package control

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/system/isolate/unixsocket"
)

// The first byte of a reply.
const (
	dialed  = 0
	refused = 1
	saved   = 2
	done    = 3
)

// verb is a request that comes with a descriptor, which distinguishes it from a port.
type verb uint16

const (
	verbSave verb = iota // with the folder
	verbFreeze
	verbThaw
)

// ServerSocket is where a program inside may serve a unix socket; its port is 0. All names on
// this path are resolved inside.
const ServerSocket = "/run/aio/aio.sock"

// Door is where a program serves that cannot be given a unix socket: gVisor cannot save
// one. Each connection must begin with DoorWord, which no web page can make a browser send,
// and then equals one to ServerSocket.
const (
	Door     = "127.0.0.1:61080"
	DoorWord = "cove-init"
)

// ErrNotSaved means that a program cannot be saved in its current state. It continues to run.
var ErrNotSaved = errors.New("cannot save the processes")

// maxSaveError bounds the text of an error of Save.
const maxSaveError = 400

// Dial connects to a TCP port on the loopback inside the sandbox whose control
// socket is called name in dir, or to its ServerSocket if port is 0.
func Dial(ctx context.Context, dir *os.File, name string, port int) (net.Conn, error) {
	c, err := unixsocket.Dial(ctx, dir, name)
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
	reply, oob := make([]byte, 512), make([]byte, unix.CmsgSpace(4))
	n, oobn, _, _, err := c.ReadMsgUnix(reply, oob)
	if err != nil {
		return fail(err)
	}
	if n == 0 {
		return fail(io.ErrUnexpectedEOF)
	}
	if reply[0] != dialed {
		return fail(errors.New(string(reply[1:n])))
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

// Save has gVisor write the memory and the processes of a sandbox to the folder image, which
// must belong to root inside. If that succeeds, the sandbox ends, even if the caller does not
// wait for the reply; otherwise it continues to run.
func Save(ctx context.Context, dir *os.File, name string, image *os.File) error {
	return request(ctx, dir, name, verbSave, image)
}

// ErrNotFrozen means that init could not suspend all processes. They continue to run.
var ErrNotFrozen = errors.New("cannot suspend the processes")

// Freeze has init suspend all processes of the sandbox with signals, or continue them.
func Freeze(ctx context.Context, dir *os.File, name string, on bool) error {
	null, err := os.Open(os.DevNull)
	if err != nil {
		return err
	}
	defer null.Close()
	what := verbThaw
	if on {
		what = verbFreeze
	}
	if err := request(ctx, dir, name, what, null); err != nil {
		return fmt.Errorf("%w: %w", ErrNotFrozen, err)
	}
	return nil
}

// request sends a verb with a file and waits for its end.
func request(ctx context.Context, dir *os.File, name string, what verb, f *os.File) error {
	c, err := unixsocket.Dial(ctx, dir, name)
	if err != nil {
		return err
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { c.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if _, _, err := c.WriteMsgUnix(binary.BigEndian.AppendUint16(nil, uint16(what)), unix.UnixRights(int(f.Fd())), nil); err != nil {
		return fmt.Errorf("send request: %w", err)
	}
	reply := make([]byte, maxSaveError+1)
	n, err := io.ReadAtLeast(c, reply, 1)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		return fmt.Errorf("receive reply: %w", err)
	case what == verbSave && reply[0] == saved, what != verbSave && reply[0] == done:
		return nil
	case reply[0] == refused && what == verbSave:
		return fmt.Errorf("%w: %s", ErrNotSaved, reply[1:n])
	case reply[0] == refused:
		return errors.New(string(reply[1:n]))
	}
	return fmt.Errorf("%w: its init is of an older version; stop and start it", ErrNotSaved)
}
