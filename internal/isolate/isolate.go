// Package isolate runs a program in a Linux sandbox of namespaces, overlays,
// control groups, dropped capabilities and a seccomp filter, with nothing to
// install: the calling program starts itself again as the sandbox's init.
//
// It owns the mechanism: mounts, limits, the init process and its end. It keeps
// no record of sandboxes and makes no names; provider/local does. It refuses to
// run anything before every part of the isolation is in place, and touches
// neither mounts, control groups nor processes that are not its own. All mounts
// live in the sandbox's own mount namespace, so they end with its last process.
//
// As root each sandbox gets a range of user IDs of its own. Without root it gets
// the caller's single ID, and limits only where a control group was delegated.
// Because of no_new_privs, setuid programs such as sudo do not work inside.
// It needs Linux 5.12, for idmapped mounts and overlays in user namespaces.
package isolate

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strings"
)

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
	// Group must exist with its limits set; nil leaves the sandbox without.
	Group *Group

	// Log keeps the end of what the program writes, in two files that take
	// turns, each of at most LogSize bytes.
	Log     [2]*os.File
	LogSize int64
	// Exit receives how the program ended, or what init itself complained of; see
	// ReadExit.
	Exit *os.File
	// Control is a listening unix socket at which init answers Dial. The sandbox
	// must not be able to reach it by any path.
	Control *os.File

	// Listen, if there is one, is a listening socket that the program gets as
	// descriptor ListenFD.
	Listen *os.File

	// Spare, if there is one, becomes the sandbox's init. Start takes it over in
	// any case; its IDs and Group must be the sandbox's.
	Spare *Spare

	// Gate is called when the init process exists, before anything in it may
	// run the program: what it keeps lets a later process Adopt the sandbox. If
	// it fails the sandbox is undone. The PID of the program is not known yet.
	Gate func(Record) error
}

// ListenFD is where the program finds Config.Listen.
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
	// Mapped says that the owners on disk are those to be seen inside, so that
	// the mount must translate them. Otherwise owners on disk are IDs.Base and up.
	Mapped bool
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
	// Dir is made, for the program's user, if it does not exist.
	Dir      string
	UID, GID uint32
}

func (c *Config) check() error {
	switch {
	case len(c.Argv) == 0:
		return errors.New("isolate: no Argv to start init with")
	case len(c.Root) == 0 || c.Root[0].Target != "/":
		return errors.New("isolate: the first overlay must be /")
	case c.Log[0] == nil || c.Log[1] == nil || c.Exit == nil || c.Control == nil:
		return errors.New("isolate: Log, Exit and Control are needed")
	case os.Geteuid() != 0 && c.IDs.Count != 0:
		return errors.New("isolate: a range of IDs needs root")
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
			return fmt.Errorf("isolate: target %q is no clean absolute path", t)
		}
	}
	return nil
}
