// Package isolate runs a program in a Linux sandbox of namespaces, overlays, control
// groups, dropped capabilities and a seccomp filter. It requires no installed software: the
// calling program starts itself as the sandbox's init.
//
// It owns the hub's side: the configuration, the start and the end of a sandbox. Package
// initprocess is the other side, and internal/protocol the messages between them. It keeps no
// records of sandboxes and chooses no names; provider/local does. No program runs before
// every part of the isolation is in place, and isolate changes only its own mounts,
// control groups and processes. All mounts are in the sandbox's mount namespace, so
// they end with its last process.
//
// As root, each sandbox gets its own range of user IDs. Without root it gets the
// caller's single ID, and limits only if a control group was delegated. Setuid
// programs do not work inside, except those that Config names. It requires Linux 5.12
// for idmapped mounts and overlays in user namespaces.
package isolate

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strings"

	"github.com/cove-sandbox/cove/internal/system/isolate/cgroup"
	"github.com/cove-sandbox/cove/internal/system/isolate/internal/protocol"
)

// The user inside.
const (
	User = "gem"
	UID  = 1000
	GID  = 1000
	Home = "/home/gem"
	// HomeAlias is a second path of the home. Programs that were written for other sandboxes expect it.
	HomeAlias = "/home/user"
	// ServerState is where the server keeps its own data, as opposed to the user's work.
	ServerState = Home + "/.local/state/aio"
	// ServerLogs is where the server keeps its logs of sessions.
	ServerLogs = "/var/tmp/aio-1000"
)

// The folders of the programs and Python packages that the hub provides to sandboxes.
const (
	Programs   = "/run/bin"
	Venv       = "/run/venv"
	Components = "/run/components"
)

// Python is the interpreter that finds these packages.
const Python = "/usr/bin/python3"

// Config describes one sandbox.
type Config struct {
	// Argv starts a program that calls initprocess.Main first, such as {"/proc/self/exe",
	// "isolate-init"}. The program must be built without cgo.
	Argv     []string
	Hostname string
	IDs      IDs

	// Root lists the overlays that make up the filesystem, "/" first.
	Root []Overlay
	// Tmpfs and then Binds are mounted over it, in order.
	Tmpfs []Tmpfs
	Binds []Bind
	// Alias is a second path of a folder inside. If its path is in use, there is no alias.
	Alias Alias
	// ShmSize bounds /dev/shm, in bytes.
	ShmSize int64

	Process Process
	Limits  Limits
	// Runtime says that the program isolates what it runs: it is root inside, with all
	// capabilities in the user namespace and without the filter of system calls, except for
	// notifications of connections. It requires a range of IDs and no Spare. See package gvisor.
	Runtime bool
	// Setuid lets programs in Binds that are marked Setuid change the user. Without it,
	// no process inside can gain privileges (no_new_privs).
	Setuid bool
	// Egress is the path inside of the socket of an egress proxy; see package outbound. If it is not empty, init
	// connects programs that do not use a proxy to it, and answers their DNS queries.
	Egress string
	// Group must exist and have its limits set. It may be nil.
	Group *cgroup.Group

	// Log keeps the end of the program's output, in two files that are written in
	// turn, each of at most LogSize bytes.
	Log     [2]*os.File
	LogSize int64
	// Exit receives how the program ended, or why init failed; see ReadExit.
	Exit *os.File
	// Control is a listening unix socket at which init serves package control. The sandbox
	// must not be able to reach it by any path.
	Control *os.File

	// Listen, if not nil, is a listening socket that the program inherits as descriptor
	// ListenFD.
	Listen *os.File

	// Spare, if not nil, becomes the sandbox's init. Start takes ownership in any case;
	// its IDs and Group must be the sandbox's.
	Spare *Spare

	// Gate is called when the init process exists, before the program runs: with the
	// record a later process can Adopt the sandbox. If Gate fails, the sandbox is
	// removed. The PID of the program is not known yet.
	Gate func(Record) error
}

// ListenFD is the descriptor of Config.Listen in the program.
const ListenFD = 3

// IDs are the user and group IDs of the host that the sandbox uses: Base is 0 inside, and Count
// IDs follow. A Count of zero maps only the caller's own ID, to that of the process.
type IDs struct {
	Base  uint32 `json:"base"`
	Count uint32 `json:"count"`
}

// Dir is a folder or file of the host.
type Dir struct {
	Path string
	// Mapped says that the owners on disk are those visible inside, so the mount
	// must translate them. Otherwise owners on disk are IDs.Base and above.
	Mapped bool
	// OfHost says that it belongs to the host: only root among its owners exists
	// inside. It has no effect unless owners are translated.
	OfHost bool
}

// Overlay is one tree of the root filesystem.
type Overlay struct {
	Target string
	Lower  []Dir // topmost first
	// Upper contains two folders, Data and Work, which receive the changes.
	Upper      Dir
	Data, Work string
}

// Bind shows a folder or file of the host inside.
type Bind struct {
	Source   Dir
	Target   string
	ReadOnly bool
	// Setuid honors the setuid bit of the file, which all other mounts ignore.
	Setuid bool
	// Hidden keeps the path out of the sandbox's list of mounts. The bind is then read-only, and
	// its sockets do not work. For a file, root inside must be able to read the folder.
	Hidden bool
}

// The parts of a Config that init receives unchanged.
type (
	Tmpfs   = protocol.Tmpfs
	Alias   = protocol.Alias
	Process = protocol.Process
	Limits  = protocol.Limits
)

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
