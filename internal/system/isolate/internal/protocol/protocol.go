// Package protocol owns the messages between the hub and the init of a sandbox: the setup, the
// reports and the descriptors that init starts with.
package protocol

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/system/isolate/cgroup"
)

// The descriptors that init starts with, after stdin, stdout and stderr.
const (
	FDConn = iota + 3 // to the parent, until the program runs
	FDLog0
	FDLog1
	FDExit
	FDControl
	FDListen
	FDExe // its own program, which it closes
)

// InitName is the name of the init process, inside and outside.
const InitName = "init"

// The first byte that is sent to init selects its user.
const (
	StaysUser = iota
	BecomesRoot
	WaitsAsRoot
	BecomesRuntime // root, and its program isolates what it runs
)

// Version must change with Setup and Report: init may be a separate program.
const Version = 7

// Setup tells init what to build. It is sent over a socket because other users of the
// machine can read arguments and the environment.
type Setup struct {
	Version  int // see Version
	Hostname string
	Root     []Overlay
	Tmpfs    []Tmpfs
	Binds    []Bind
	Alias    Alias
	ShmSize  int64
	Process  Process
	Limits   Limits
	LogSize  int64
	Rootless bool
	Filter   string // of system calls; see seccomp.Program
	Notify   string // of calls that init decides on; see seccomp.Notifications
	Egress   string // socket of the egress proxy inside, to which init connects programs; empty if there is none
	Listens  bool   // the program gets a listening socket at FDListen
	Setuid   bool   // programs in binds that are marked Setuid may change the user
	// Late: the files that other inits start with follow the mounts.
	Late bool
}

// Source is a folder or file of the host: the descriptor of a detached mount, number FD of
// those sent along, or its path if FD is -1.
type Source struct {
	Path string
	FD   int
}

// Overlay is one tree of the root filesystem.
type Overlay struct {
	Target     string
	Lower      []Source
	Upper      Source
	Data, Work string
}

// Bind shows a folder or file of the host inside.
type Bind struct {
	Source   Source
	Target   string
	ReadOnly bool
	Setuid   bool
	Hidden   bool
	File     string // name of the file to mount in the source; empty mounts the source itself
}

// Alias is a second path of a folder of the sandbox. Empty paths are none.
type Alias struct{ Path, Target string }

// Tmpfs is a folder in memory.
type Tmpfs struct {
	Target   string
	Size     int64
	Mode     uint32
	UID, GID uint32
}

// Process is the program to run. Init starts it and ends with it.
type Process struct {
	// Args names the program first, looked up in PATH of Env if it has no slash.
	// Without Args the sandbox is set up and ends: a trial.
	Args []string
	Env  []string
	// Dir is created, for the program's user, if it does not exist.
	Dir      string
	UID, GID uint32
}

// Limits bounds a sandbox; zero is no limit.
type Limits struct {
	CPU      int64 // thousandths of a processor
	Share    int64 // thousandths of a processor under contention
	Memory   int64 // bytes
	Pids     int64
	Files    int64 // open files of one process
	FileSize int64 // bytes of one file
}

// Group returns the limits that a control group enforces; init sets the others.
func (l Limits) Group() cgroup.Limits {
	return cgroup.Limits{CPU: l.CPU, Share: l.Share, Memory: l.Memory, Pids: l.Pids}
}

// transfer sends the version first: a receiver of another version reads no further.
func (s *Setup) transfer(f *frame) {
	number(f, &s.Version)
	if f.reading && s.Version != Version {
		f.buf = nil
		return
	}
	f.text(&s.Hostname)
	list(f, &s.Root, func(f *frame, o *Overlay) {
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
	list(f, &s.Binds, func(f *frame, b *Bind) {
		f.source(&b.Source)
		f.text(&b.Target)
		f.boolean(&b.ReadOnly)
		f.boolean(&b.Setuid)
		f.boolean(&b.Hidden)
		f.text(&b.File)
	})
	f.text(&s.Alias.Path)
	f.text(&s.Alias.Target)
	number(f, &s.ShmSize)
	f.texts(&s.Process.Args)
	f.texts(&s.Process.Env)
	f.text(&s.Process.Dir)
	number(f, &s.Process.UID)
	number(f, &s.Process.GID)
	for _, n := range []*int64{
		&s.Limits.CPU, &s.Limits.Share, &s.Limits.Memory, &s.Limits.Pids, &s.Limits.Files, &s.Limits.FileSize, &s.LogSize,
	} {
		number(f, n)
	}
	f.boolean(&s.Rootless)
	f.text(&s.Filter)
	f.text(&s.Notify)
	f.text(&s.Egress)
	f.boolean(&s.Listens)
	f.boolean(&s.Setuid)
	f.boolean(&s.Late)
}

func (f *frame) source(s *Source) {
	f.text(&s.Path)
	number(f, &s.FD)
}

// Report is what init sends: the end of a stage, or an error.
type Report struct {
	Stage string
	Took  time.Duration
	PID   int // of the program, inside
	Error string
}

func (r *Report) transfer(f *frame) {
	f.text(&r.Stage)
	number(f, &r.Took)
	number(f, &r.PID)
	f.text(&r.Error)
}

// The stages that init reports.
const (
	StageMount = "mount" // the filesystem is complete; init waits at the gate
	StageRun   = "run"   // the program runs
)

// maxSetup bounds a setup, which is mostly the program's environment; maxReport
// bounds a report.
const (
	maxSetup  = 1 << 20
	maxReport = 64 << 10
)

// MaxFDs is the kernel's limit of descriptors in one message.
const MaxFDs = 253

// SendReport sends a report to the hub.
func SendReport(w io.Writer, r Report) error {
	_, err := w.Write(marshal(&r))
	return err
}

// ReceiveReport reads the next report of init.
func ReceiveReport(r io.Reader) (got Report, err error) {
	err = receive(r, &got, maxReport)
	return got, err
}

// SendSetup sends the descriptors that the setup refers to, and then the setup.
func SendSetup(c *net.UnixConn, s Setup, fds []int) error {
	body := marshal(&s)
	if len(body) > maxSetup {
		return fmt.Errorf("the setup has %d bytes, more than %d", len(body), maxSetup)
	}
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	// A separate byte carries the descriptors, because a long message would be split.
	if _, _, err := c.WriteMsgUnix([]byte{0}, rights, nil); err != nil {
		return err
	}
	_, err := c.Write(body)
	return err
}

// ReceiveSetup reads what SendSetup sent, from a blocking descriptor.
func ReceiveSetup(conn *os.File) (s Setup, fds []int, err error) {
	head, oob := make([]byte, 1), make([]byte, unix.CmsgSpace(4*MaxFDs))
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
	err = receive(conn, &s, maxSetup)
	return s, fds, err
}
