package isolate

import (
	"encoding/json"
	"errors"
	"fmt"
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
	fdListen
	fdExe // what it runs, which it closes
)

// The first byte that init is sent: who it is from now on.
const (
	staysUser = iota
	becomesRoot
	waitsAsRoot
)

// wireVersion changes with setup and report: init may be a program of its own.
const wireVersion = 2

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
	Filter   string // of system calls; see sealing
	Listens  bool   // there is a Config.Listen
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

// tell has the version first: who is of another one reads no further.
func (s *setup) tell(f *frame) {
	whole(f, &s.Version)
	if f.reading && s.Version != wireVersion {
		f.buf = nil
		return
	}
	f.text(&s.Hostname)
	list(f, &s.Root, func(f *frame, o *overlay) {
		f.text(&o.Target)
		list(f, &o.Lower, (*frame).source)
		f.source(&o.Upper)
		f.text(&o.Data)
		f.text(&o.Work)
	})
	list(f, &s.Tmpfs, func(f *frame, t *Tmpfs) {
		f.text(&t.Target)
		whole(f, &t.Size)
		whole(f, &t.Mode)
		whole(f, &t.UID)
		whole(f, &t.GID)
	})
	list(f, &s.Binds, func(f *frame, b *bind) {
		f.source(&b.Source)
		f.text(&b.Target)
		f.flag(&b.ReadOnly)
	})
	whole(f, &s.ShmSize)
	f.texts(&s.Process.Args)
	f.texts(&s.Process.Env)
	f.text(&s.Process.Dir)
	whole(f, &s.Process.UID)
	whole(f, &s.Process.GID)
	for _, n := range []*int64{&s.Limits.CPU, &s.Limits.Share, &s.Limits.Memory, &s.Limits.Pids, &s.Limits.Files, &s.Limits.FileSize, &s.LogSize} {
		whole(f, n)
	}
	f.flag(&s.Rootless)
	f.text(&s.Filter)
	f.flag(&s.Listens)
	f.flag(&s.Late)
}

func (f *frame) source(s *source) {
	f.text(&s.Path)
	whole(f, &s.FD)
}

// report is what init tells: the end of a stage, or what went wrong.
type report struct {
	Stage string
	Took  time.Duration
	PID   int // of the program, inside
	Error string
}

func (r *report) tell(f *frame) {
	f.text(&r.Stage)
	whole(f, &r.Took)
	whole(f, &r.PID)
	f.text(&r.Error)
}

// The stages init reports.
const (
	stageMount = "mount" // the filesystem stands; init waits at the gate
	stageRun   = "run"   // the program runs
)

// maxSetup bounds a setup, which is mostly the program's environment; maxReport
// bounds a report.
const (
	maxSetup  = 1 << 20
	maxReport = 64 << 10
)

// maxFDs is the kernel's own bound on descriptors in one message.
const maxFDs = 253

// sendSetup sends the setup and, first, the descriptors it refers to.
func sendSetup(c *net.UnixConn, s setup, fds []int) error {
	body := pack(&s)
	if len(body) > maxSetup {
		return fmt.Errorf("the setup is %d bytes, more than %d", len(body), maxSetup)
	}
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	// One byte takes them along; a long message would be cut in two.
	if _, _, err := c.WriteMsgUnix([]byte{0}, rights, nil); err != nil {
		return err
	}
	_, err := c.Write(body)
	return err
}

// receiveSetup is the other end, on a blocking descriptor.
func receiveSetup(conn *os.File) (s setup, fds []int, err error) {
	head, oob := make([]byte, 1), make([]byte, unix.CmsgSpace(4*maxFDs))
	n, oobn, flags, _, err := unix.Recvmsg(int(conn.Fd()), head, oob, unix.MSG_CMSG_CLOEXEC)
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
	return s, fds, receive(conn, &s, maxSetup)
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
