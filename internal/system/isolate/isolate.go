// Package isolate runs a program in a Linux sandbox of namespaces, overlays, control
// groups, dropped capabilities and a seccomp filter, with nothing to install: the
// calling program starts itself again as the sandbox's init.
//
// It owns the mechanism: mounts, limits, the init process and its end. It keeps no
// records of sandboxes and chooses no names; provider/local does. It refuses to run
// anything before every part of the isolation is in place, and touches no mounts,
// control groups or processes but its own. All mounts are in the sandbox's own mount
// namespace, so they end with its last process.
//
// As root, each sandbox gets its own range of user IDs. Without root it gets the
// caller's single ID, and limits only where a control group was delegated. Setuid
// programs do not work inside, but for one that Config names. It needs Linux 5.12,
// for idmapped mounts and overlays in user namespaces.
//
// The hub's side is in start.go, spare.go, handle.go and control.go; init's side is in
// init.go, save.go, mount.go, devproc.go, procfile.go, capability.go, seccomp.go, seccomp_net.go,
// referee.go and log.go. Between them
// they speak protocol.go.
package isolate

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strings"

	"github.com/cove-sandbox/cove/internal/system/isolate/cgroup"
)

// The user inside.
const (
	User = "gem"
	UID  = 1000
	GID  = 1000
	Home = "/home/gem"
	// ServerState is where the server keeps its own data, which is no work of the user's.
	ServerState = Home + "/.local/state/aio"
	// ServerLogs is where the server keeps its logs of sessions.
	ServerLogs = "/var/tmp/aio-1000"
)

// Where sandboxes find programs and the Python packages that the hub brings along.
const (
	Programs   = "/run/bin"
	Venv       = "/run/venv"
	Components = "/run/components"
)

// Python is the interpreter that sees them.
const Python = "/usr/bin/python3"

// Config describes one sandbox.
type Config struct {
	// Argv starts the calling program again, such as {"/proc/self/exe",
	// "isolate-init"}; on these arguments its main must call Main at once. The
	// program must be built without cgo.
	Argv     []string
	Hostname string
	IDs      IDs

	// Root lists the overlays that make up the filesystem, "/" first.
	Root []Overlay
	// Tmpfs and then Binds are mounted over it, in order.
	Tmpfs []Tmpfs
	Binds []Bind
	// ShmSize bounds /dev/shm, in bytes.
	ShmSize int64

	Process Process
	Limits  Limits
	// Runtime says that the program builds walls of its own around what it runs: it is
	// root inside, with all capabilities in the user namespace, without our filter. It
	// needs a range of IDs and no Spare. See UseGVisor.
	Runtime bool
	// Setuid lets programs in Binds that are marked so change the user. Without it,
	// nobody inside can gain privileges (no_new_privs).
	Setuid bool
	// Group must exist and have its limits set. It may be nil.
	Group *cgroup.Group

	// Log keeps the end of the program's output, in two files that are written in
	// turn, each of at most LogSize bytes.
	Log     [2]*os.File
	LogSize int64
	// Exit receives how the program ended, or why init failed; see ReadExit.
	Exit *os.File
	// Control is a listening unix socket at which init answers Dial. The sandbox
	// must not be able to reach it by any path.
	Control *os.File

	// Listen, if not nil, is a listening socket that the program gets as descriptor
	// ListenFD.
	Listen *os.File

	// Spare, if not nil, becomes the sandbox's init. Start takes ownership in any case;
	// its IDs and Group must be the sandbox's.
	Spare *Spare

	// Gate is called when the init process exists, and before the program may run: the
	// record lets a later process Adopt the sandbox. If it fails, the sandbox is
	// undone. The PID of the program is not known yet.
	Gate func(Record) error
}

// ListenFD is the descriptor of Config.Listen in the program.
const ListenFD = 3

// IDs says which user and group IDs of the host the sandbox uses: inside, 0 is
// Base, up to Count of them. A Count of zero maps only the caller's own ID, to
// that of the process.
type IDs struct {
	Base  uint32 `json:"base"`
	Count uint32 `json:"count"`
}

// Dir is a folder or file of the host.
type Dir struct {
	Path string
	// Mapped says that the owners on disk are those visible inside, so that the mount
	// must translate them. Otherwise owners on disk are IDs.Base and up.
	Mapped bool
	// OfHost says that it belongs to the host: of its owners only root means anything
	// inside. It matters only where owners are translated.
	OfHost bool
}

// Overlay is one tree of the root filesystem.
type Overlay struct {
	Target string
	Lower  []Dir // topmost first
	// Upper holds two folders, Data and Work, that take the changes.
	Upper      Dir
	Data, Work string
}

// Bind shows a folder or file of the host inside.
type Bind struct {
	Source   Dir
	Target   string
	ReadOnly bool
	// Setuid keeps the effect of the file's setuid bit, which all other mounts ignore.
	Setuid bool
	// Hidden keeps the path out of the sandbox's list of mounts. It is read-only then and has no
	// sockets that anyone uses. Of a file, root inside must be able to read the folder.
	Hidden bool
}

// Tmpfs is a folder in memory.
type Tmpfs struct {
	Target   string
	Size     int64
	Mode     uint32
	UID, GID uint32
}

// Process is the program to run. It is started by init, which ends with it.
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
	Share    int64 // thousandths of a processor it gets under contention
	Memory   int64 // bytes
	Pids     int64
	Files    int64 // open files of one process
	FileSize int64 // bytes of one file
}

// Group returns the limits that a control group enforces; init sets the others.
func (l Limits) Group() cgroup.Limits {
	return cgroup.Limits{CPU: l.CPU, Share: l.Share, Memory: l.Memory, Pids: l.Pids}
}

func (c *Config) check() error {
	switch {
	case len(c.Argv) == 0:
		return errors.New("isolate: Argv is required")
	case len(c.Root) == 0 || c.Root[0].Target != "/":
		return errors.New("isolate: the first overlay must be /")
	case c.Log[0] == nil || c.Log[1] == nil || c.Exit == nil || c.Control == nil:
		return errors.New("isolate: Log, Exit and Control are required")
	case c.Runtime && (c.IDs.Count == 0 || c.Spare != nil):
		return errors.New("isolate: a runtime requires a range of IDs and no spare")
	case os.Geteuid() != 0 && c.IDs.Count != 0:
		return errors.New("isolate: a range of IDs requires root")
	}
	var targets []string
	for _, o := range c.Root {
		targets = append(targets, o.Target)
	}
	for _, t := range c.Tmpfs {
		targets = append(targets, t.Target)
	}
	for _, b := range c.Binds {
		targets = append(targets, b.Target)
	}
	for _, t := range targets {
		if !path.IsAbs(t) || path.Clean(t) != t || strings.IndexByte(t, 0) >= 0 {
			return fmt.Errorf("isolate: target %q is not a clean absolute path", t)
		}
	}
	return nil
}
