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

// Config configures a provider. Dir and Init are required; other fields have defaults.
type Config struct {
	// Dir is the state folder. It is created if missing, with access only for its owner. It must not be on an overlay
	// filesystem.
	Dir string
	// Init is the command of a sandbox's init; see isolate.Config.Argv.
	Init []string
	// Sudo is the program that becomes root inside a sandbox; see package sudo. Without it, programs cannot become root.
	Sudo string
	// Command is the default command. It inherits the listening socket of the server as isolate.ListenFD, and CommandEnv.
	// It gets neither if the environment sets a variable of CommandEnv.
	Command    []string
	CommandEnv map[string]string
	// DoorEnv is the variable that makes Command serve at isolate.Door instead, as address/word; empty if unsupported.
	// Pausing to disk requires it.
	DoorEnv string
	// Binds are files and folders of the host that are visible in every sandbox, read-only.
	Binds []Bind
	// Env is added to the environment of every sandbox; the spec takes precedence.
	Env map[string]string
	// Defaults are the default resources.
	Defaults sandbox.Resources
	// VolumeSize is the limit of each volume; default: the default disk limit.
	VolumeSize int64
	// Runsc is the program of gVisor; empty disables the isolation gvisor.
	Runsc string
	// FirstID is the first user ID of the host for sandboxes, which use 65536 each.
	FirstID uint32
	// Cgroup is a delegated cgroup v2 group; sandboxes run below it.
	Cgroup string
	// Images configures the image store. Without its Dir, images, imports and exports are unsupported.
	Images ImageConfig
	// ImageSize bounds the filesystem for disks, a sparse file that is created if the filesystem of the state folder
	// has no snapshots of folders. Default: nine tenths of the free space. With NoImage there is none: snapshots and
	// forks copy file by file.
	ImageSize int64
	NoImage   bool

	// Spares is the minimum number of inits that are started in advance, which saves a few milliseconds per create.
	// MaxSpares is the maximum after a burst. Both require root.
	Spares, MaxSpares int

	ReadyTimeout time.Duration // default of specs
	StopGrace    time.Duration // from SIGTERM to SIGKILL
	LogSize      int64         // maximum size of each of the two log files of a sandbox
	Log          *slog.Logger

	withoutIDMaps bool   // treats filesystems as if they did not support ID-mapped mounts
	ids           uint32 // number of user IDs of a sandbox; see fitIDs
}

// Bind is a file or folder of the host that is visible inside.
type Bind = runner.Bind

// ImageConfig configures the image store and registries.
type ImageConfig struct {
	// Dir is the folder of the image store. It should be on the filesystem of the state folder, because overlays use
	// both.
	Dir string
	// Insecure lists registries (host or host:port) without TLS.
	Insecure []string
	// Private lists registries (host or host:port) that may have private addresses.
	Private []string
	// AuthFile contains registry credentials in the format of Docker's config.json.
	AuthFile string
	// Proxy returns the proxy for a request to a registry; nil means none.
	Proxy func(*http.Request) (*url.URL, error) `json:"-"`
}

// defaultFirstID is above the IDs that distributions assign to users.
const defaultFirstID = 2_000_000_000

// fill checks the configuration and sets defaults.
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
	return c.readIDMaps()
}
