package isolate

import (
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// The descriptors that init starts with, after stdin, stdout and stderr.
const (
	fdConn = iota + 3 // to the parent, until the program runs
	fdLog0
	fdLog1
	fdExit
	fdControl
	fdListen
	fdExe // its own program, which it closes
)

// The first byte that is sent to init: its user from now on.
const (
	staysUser = iota
	becomesRoot
	waitsAsRoot
	becomesRuntime // root, and what it runs has walls of its own
)

// protocolVersion changes with setup and report: init may be a separate program.
const protocolVersion = 5

// setup tells init what to build. It is sent over a socket, because others on the
// machine could read arguments and the environment.
type setup struct {
	Version  int // see protocolVersion
	Hostname string
	Root     []overlay
	Tmpfs    []Tmpfs
	Binds    []bind
	ShmSize  int64
	Process  Process
	Limits   Limits
	LogSize  int64
	Rootless bool
	Filter   string // of system calls; see filterProgram
	Listens  bool   // there is a Config.Listen
	Setuid   bool   // see Config.Setuid
	// Late: the files of Config are sent along, after the mounts.
	Late bool
}

// source is a Dir as sent to init: the descriptor of a detached mount, number FD of
// those sent along, or its path if FD is -1.
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
	Setuid   bool
	Hidden   bool
	File     string // what is mounted of the source, if not all
}

// transfer has the version first: a receiver of another version reads no further.
func (s *setup) transfer(f *frame) {
	number(f, &s.Version)
	if f.reading && s.Version != protocolVersion {
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
		number(f, &t.Size)
		number(f, &t.Mode)
		number(f, &t.UID)
		number(f, &t.GID)
	})
	list(f, &s.Binds, func(f *frame, b *bind) {
		f.source(&b.Source)
		f.text(&b.Target)
		f.boolean(&b.ReadOnly)
		f.boolean(&b.Setuid)
		f.boolean(&b.Hidden)
		f.text(&b.File)
	})
	number(f, &s.ShmSize)
	f.texts(&s.Process.Args)
	f.texts(&s.Process.Env)
	f.text(&s.Process.Dir)
	number(f, &s.Process.UID)
	number(f, &s.Process.GID)
	for _, n := range []*int64{&s.Limits.CPU, &s.Limits.Share, &s.Limits.Memory, &s.Limits.Pids, &s.Limits.Files,
		&s.Limits.FileSize, &s.LogSize} {
		number(f, n)
	}
	f.boolean(&s.Rootless)
	f.text(&s.Filter)
	f.boolean(&s.Listens)
	f.boolean(&s.Setuid)
	f.boolean(&s.Late)
}

func (f *frame) source(s *source) {
	f.text(&s.Path)
	number(f, &s.FD)
}

// report is what init sends: the end of a stage, or an error.
type report struct {
	Stage string
	Took  time.Duration
	PID   int // of the program, inside
	Error string
}

func (r *report) transfer(f *frame) {
	f.text(&r.Stage)
	number(f, &r.Took)
	number(f, &r.PID)
	f.text(&r.Error)
}

// The stages init reports.
const (
	stageMount = "mount" // the filesystem is complete; init waits at the gate
	stageRun   = "run"   // the program runs
)

// maxSetup bounds a setup, which is mostly the program's environment; maxReport
// bounds a report.
const (
	maxSetup  = 1 << 20
	maxReport = 64 << 10
)

// maxFDs is the kernel's limit for descriptors in one message.
const maxFDs = 253

// sendSetup sends the setup and, first, the descriptors it refers to.
func sendSetup(c *net.UnixConn, s setup, fds []int) error {
	body := marshal(&s)
	if len(body) > maxSetup {
		return fmt.Errorf("the setup has %d bytes, more than %d", len(body), maxSetup)
	}
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	// One byte carries them; a long message would be split.
	if _, _, err := c.WriteMsgUnix([]byte{0}, rights, nil); err != nil {
		return err
	}
	_, err := c.Write(body)
	return err
}

// receiveSetup is the receiving side, on a blocking descriptor.
func receiveSetup(conn *os.File) (s setup, fds []int, err error) {
	head, oob := make([]byte, 1), make([]byte, unix.CmsgSpace(4*maxFDs))
	n, oobn, flags, _, err := unix.Recvmsg(int(conn.Fd()), head, oob, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return s, nil, err
	}
	if n != len(head) || flags&unix.MSG_CTRUNC != 0 {
		return s, nil, errors.New("the setup is truncated")
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
