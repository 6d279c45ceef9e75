package local

import (
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"path/filepath"
	"time"

	"github.com/cove-sandbox/cove/internal/provider/local/internal/runner"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// Config says where and how sandboxes run. Zero fields have defaults, except Dir
// and Init.
type Config struct {
	// Dir is the state folder. It is created if needed, accessible to its owner only,
	// and must not be on an overlay filesystem.
	Dir string
	// Init starts this program as a sandbox's init; see isolate.Config.Argv.
	Init []string
	// Sudo is the program that becomes root inside a sandbox; see package sudo. Without
	// it nobody can.
	Sudo string
	// Command runs in sandboxes whose spec has none. It is started with the server's
	// socket, which listens already, as isolate.ListenFD, and with CommandEnv; with
	// neither if the environment sets a variable of CommandEnv itself.
	Command    []string
	CommandEnv map[string]string
	// DoorEnv is the variable that tells Command to serve at control.Door instead, as
	// address/word; empty if it cannot. It takes that to pause a sandbox to disk.
	DoorEnv string
	// Binds shows files and folders of the host in every sandbox, read-only.
	Binds []Bind
	// Env is part of every sandbox's environment; the spec's takes precedence.
	Env map[string]string
	// Defaults are the resources of specs that leave them open.
	Defaults sandbox.Resources
	// VolumeSize bounds each volume; the default disk limit if zero.
	VolumeSize int64
	// Runsc is the program of gVisor, for the isolation of that name; empty if there is
	// none.
	Runsc string
	// FirstID is the first of the host's user IDs for sandboxes, which use 65536 each.
	FirstID uint32
	// Cgroup is a delegated cgroup v2 group to work below.
	Cgroup string
	// Images says where images are kept and where they come from. Without its Dir
	// specs with an image are refused, and so are imports and exports.
	Images ImageConfig
	// ImageSize bounds the filesystem that is created for disks, in a file, where that
	// of the state folder cannot copy a folder in one step; nine tenths of what is free
	// if zero. The file takes only as much space as is used. NoImage creates none:
	// snapshots and forks then copy file by file.
	ImageSize int64
	NoImage   bool

	// Spares is the minimum number of inits that are started ahead, which makes a
	// create some milliseconds faster; MaxSpares is how many there are at most after
	// a burst. It needs root.
	Spares, MaxSpares int

	ReadyTimeout time.Duration // of specs that have none
	StopGrace    time.Duration // from SIGTERM to SIGKILL
	LogSize      int64         // kept of a program's output, twice
	Log          *slog.Logger

	withoutIDMaps bool // as if no filesystem could translate owners; for tests
}

// Bind shows a file or folder of the host inside.
type Bind = runner.Bind

// ImageConfig says where images are kept and where they may come from.
type ImageConfig struct {
	// Dir is the image store's folder. Overlays are built on it, so it should be on
	// the filesystem of the state folder.
	Dir string
	// Insecure lists registries, host or host:port, to contact without TLS.
	Insecure []string
	// Private lists registries, host or host:port, that may have private addresses.
	Private []string
	// AuthFile holds registry credentials, in the format of docker's config.json.
	AuthFile string
	// Proxy returns the proxy for a request to a registry; nil means none.
	Proxy func(*http.Request) (*url.URL, error) `json:"-"`
}

// defaultFirstID is above what distributions assign to users.
const defaultFirstID = 2_000_000_000

// fill sets defaults.
func (c *Config) fill() error {
	if !filepath.IsAbs(c.Dir) || len(c.Init) == 0 {
		return errors.New("local provider: an absolute Dir and Init are required")
	}
	def := func(v *int64, d int64) {
		if *v == 0 {
			*v = d
		}
	}
	def(&c.Defaults.MemoryLimit, 1<<30)
	def(&c.Defaults.Pids, 1024)
	def(&c.Defaults.Files, 65536)
	def(&c.Defaults.Disk, 10<<30)
	def(&c.VolumeSize, c.Defaults.Disk)
	def(&c.LogSize, 1<<20)
	def((*int64)(&c.ReadyTimeout), int64(30*time.Second))
	def((*int64)(&c.StopGrace), int64(10*time.Second))
	if c.FirstID == 0 {
		c.FirstID = defaultFirstID
	}
	if c.Log == nil {
		c.Log = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	return nil
}
