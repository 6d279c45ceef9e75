package isolate

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// The descriptors that init starts with, after stdin, stdout and stderr.
const (
	fdConn = iota + 3 // to who started it, until the program runs
	fdLog0
	fdLog1
	fdExit
	fdControl
)

// The first byte that init is sent: who it is from now on.
const (
	staysUser = iota
	becomesRoot
)

// wireVersion changes with setup and report: init may be a program of its own.
const wireVersion = 1

// setup is what init is told. It goes over a socket, not through arguments or
// the environment, which others on the machine could read.
type setup struct {
	Version  int // of all that is said here; see wireVersion
	Hostname string
	Root     []overlay
	Tmpfs    []Tmpfs
	Binds    []bind
	ShmSize  int64
	Process  Process
	Limits   Limits
	LogSize  int64
	Rootless bool
	// Late: the files of Config come with this, behind the mounts.
	Late bool
}

// source is a Dir on its way to init: as a descriptor of a detached mount,
// number FD of those sent along, or by its path if FD is -1.
type source struct {
	Path string
	FD   int
}

type overlay struct {
	Target     string
	Lower      []source
	Upper      source
	Data, Work string
}

type bind struct {
	Source   source
	Target   string
	ReadOnly bool
}

// report is what init tells: the end of a stage, or what went wrong.
type report struct {
	Stage string        `json:",omitempty"`
	Took  time.Duration `json:",omitempty"`
	PID   int           `json:",omitempty"` // of the program, inside
	Error string        `json:",omitempty"`
}

// The stages init reports.
const (
	stageMount = "mount" // the filesystem stands; init waits at the gate
	stageRun   = "run"   // the program runs
)

// maxSetup bounds a setup, which is mostly the program's environment.
const maxSetup = 1 << 20

// sendSetup sends the setup and the descriptors it refers to.
func sendSetup(c *net.UnixConn, s setup, fds []int) error {
	body, err := json.Marshal(s)
	if err != nil {
		return err
	}
	if len(body) > maxSetup {
		return fmt.Errorf("the setup is %d bytes, more than %d", len(body), maxSetup)
	}
	head := binary.BigEndian.AppendUint32(nil, uint32(len(body)))
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	if _, _, err := c.WriteMsgUnix(head, rights, nil); err != nil {
		return err
	}
	_, err = c.Write(body)
	return err
}

// maxFDs is the kernel's own bound on descriptors in one message.
const maxFDs = 253

// receiveSetup is the other end, on a blocking descriptor.
func receiveSetup(conn *os.File) (s setup, fds []int, err error) {
	head, oob := make([]byte, 4), make([]byte, unix.CmsgSpace(4*maxFDs))
	n, oobn, flags, _, err := unix.Recvmsg(int(conn.Fd()), head, oob, unix.MSG_CMSG_CLOEXEC|unix.MSG_WAITALL)
	if err != nil {
		return s, nil, err
	}
	if n != len(head) || flags&unix.MSG_CTRUNC != 0 {
		return s, nil, errors.New("the setup is cut short")
	}
	msgs, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil {
		return s, nil, err
	}
	for _, m := range msgs {
		got, err := unix.ParseUnixRights(&m)
		if err != nil {
			return s, nil, err
		}
		fds = append(fds, got...)
	}
	size := binary.BigEndian.Uint32(head)
	if size > maxSetup {
		return s, nil, errors.New("the setup is too large")
	}
	body := make([]byte, size)
	if _, err := io.ReadFull(conn, body); err != nil {
		return s, nil, err
	}
	return s, fds, json.Unmarshal(body, &s)
}

// Exit is how the program of a sandbox ended.
type Exit struct {
	Code   int    // its exit status, if it exited
	Signal string `json:",omitempty"` // what killed it, otherwise
	Error  string `json:",omitempty"` // why it was never started, otherwise
}

func (e Exit) String() string {
	switch {
	case e.Error != "":
		return e.Error
	case e.Signal != "":
		return "killed by signal: " + e.Signal
	default:
		return fmt.Sprintf("exited with status %d", e.Code)
	}
}

// ReadExit reads what init wrote to Config.Exit; ok is false if it was killed
// before it could.
func ReadExit(path string) (e Exit, ok bool) {
	data, err := readCapped(path, 4<<10)
	if err != nil || len(data) == 0 {
		return Exit{}, false
	}
	if json.Unmarshal(data, &e) != nil {
		e = Exit{Error: "init failed: " + string(data)}
	}
	return e, true
}
