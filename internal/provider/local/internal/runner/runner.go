// Package runner manages the lifecycle of sandboxes: it creates, starts, pauses, stops, deletes and adopts them, and
// enforces their limits.
//
// It owns a folder per sandbox, the control groups, the ranges of user IDs, and the processes that it started in
// advance. A starting hub knows only the records. Package disk owns the disks, package socket the connections.
//
// The folder of a sandbox contains:
//
//	state.json         its record
//	log.0 log.1 exit   written by its init, through open files only
//	saved/             its memory and processes while it is paused to disk; see save.go
//
// Its sockets are in another folder; see package socket.
package runner

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/provider/local/internal/disk"
	"github.com/cove-sandbox/cove/internal/provider/local/internal/socket"
	"github.com/cove-sandbox/cove/internal/sandbox"
	"github.com/cove-sandbox/cove/internal/system/isolate"
	"github.com/cove-sandbox/cove/internal/system/isolate/cgroup"
)

// Config configures a Runner. All fields are required unless marked otherwise.
type Config struct {
	Dir   string   // the state folder
	Init  []string // command of the init of a sandbox
	Runsc string   // the program of gVisor; optional
	Sudo  string   // the program that becomes root inside; optional

	// Defaults of specs.
	Command    []string          // optional
	CommandEnv map[string]string // optional
	DoorEnv    string            // variable that makes Command serve at control.Door; optional
	Env        map[string]string // optional
	Defaults   sandbox.Resources

	Binds         []Bind
	FirstID       uint32
	IDs           uint32 // number of user IDs of a sandbox; if it is less than disk.IDRange, all sandboxes share them
	Cgroup        string // optional
	Spares        int
	MaxSpares     int
	ReadyTimeout  time.Duration
	StopGrace     time.Duration
	LogSize       int64
	Log           *slog.Logger
	WithoutIDMaps bool // treats filesystems as if they did not support ID-mapped mounts

	Disks   *disk.Store
	Volumes Volumes
	Servers Servers
}

// Bind is a file or folder of the host that is visible in every sandbox, read-only.
type Bind struct{ Source, Target string }

// Volumes provides the volumes of owners.
type Volumes interface {
	// Use returns the folder of a volume. It creates a missing volume.
	Use(owner, name string) (path string, err error)
	// Excess describes which volume exceeds its limit; empty if none, or if the filesystem enforces limits.
	Excess(owner string, names []string) (string, error)
}

// Servers waits for the server of a sandbox.
type Servers interface {
	WaitReady(ctx context.Context, s socket.Server) error
}

// Runner runs sandboxes.
type Runner struct {
	cfg      Config
	disks    *disk.Store
	groups   *cgroup.Root
	table    *sandbox.Table[*box]
	launcher *launcher
	ids      *idRanges
	spares   *spares
	journal  *journal
	watcher  *watcher
	cleaner  *cleaner
	Sockets  *Sockets

	once sync.Once
	end  error
}

// box is the state of one sandbox.
type box struct {
	rec state
	dir string
	// sockets is the folder of its sockets; see package socket.
	sockets string
	run     *isolate.Handle // nil if it does not run
	spare   *isolate.Spare  // init for the first start; nil if none
	group   *cgroup.Group
	usage   usage  // of the disk; used by the watcher
	demand  demand // for CPUs; used by the watcher
	layered int64  // bytes of the disk that are in layers; after a restart of the hub, none are
}

func (b *box) path(elem ...string) string {
	return filepath.Join(append([]string{b.dir}, elem...)...)
}

// Open determines how sandboxes can run here, with a trial sandbox. Call Adopt and then Run before other methods.
func Open(ctx context.Context, cfg Config) (*Runner, error) {
	r := &Runner{cfg: cfg, disks: cfg.Disks, table: sandbox.NewTable[*box](), ids: newIDRanges(cfg.FirstID, cfg.IDs)}
	sum := sha256.Sum256([]byte(cfg.Dir))
	var err error
	if r.Sockets, err = openSockets(cfg.Dir); err != nil {
		return nil, err
	}
	if r.groups, err = cgroup.Open("cove-"+hex.EncodeToString(sum[:4]), cfg.Cgroup); err != nil {
		return nil, err
	}
	r.launcher = &launcher{
		cfg: cfg, disks: cfg.Disks, groups: r.groups, sockets: r.Sockets,
		programs: loadPrograms(cfg), ids: r.ids, starting: make(chan struct{}, runtime.NumCPU()+1),
		defaults: defaults{cfg.Command, cfg.CommandEnv, cfg.DoorEnv, cfg.Env, hostEnv(), cfg.Defaults, cfg.ReadyTimeout},
	}
	if r.groups.Has("io") {
		r.launcher.device = cgroup.DeviceOf(cfg.Disks.Sandboxes())
	}
	r.spares = &spares{min: cfg.Spares, max: cfg.MaxSpares, groups: r.groups, ids: r.ids, sockets: r.Sockets,
		init: r.launcher.programs.init, background: r.table.Go, log: cfg.Log}
	r.journal = &journal{disks: cfg.Disks, background: r.table.Go, log: cfg.Log, unsynced: map[string]bool{}}
	r.watcher, r.cleaner = &watcher{runner: r}, &cleaner{runner: r}
	if err := r.launcher.tryMappings(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("this machine cannot run sandboxes: %w", err), r.Close())
	}
	r.ids.shared = !r.disks.Mapping().State
	return r, nil
}

// Run starts background work: enforcing limits and preparing inits.
func (r *Runner) Run() {
	r.table.Go(r.watcher.run)
	r.spares.start()
}

// Close ends everything except running sandboxes.
func (r *Runner) Close() error {
	r.once.Do(func() {
		r.table.Close(sandbox.ErrClosed)
		spares := r.spares.close()
		var sockets error
		r.table.Each(func(b *box) {
			switch {
			case b == nil:
			case b.run != nil:
				b.run.Close()
			case b.rec.Save == "": // the next hub creates them again
				sockets = errors.Join(sockets, r.Sockets.remove(b.sockets))
			}
		})
		r.end = errors.Join(sockets, unmountPrograms(r.cfg.Dir), r.Sockets.close(), r.groups.Close(), spares)
	})
	return r.end
}

// Begin starts a call. Its context ends with ctx or Close, which waits for done.
func (r *Runner) Begin(ctx context.Context) (_ context.Context, done func(), err error) {
	return r.table.Begin(ctx)
}

// Dir returns the folder of a sandbox.
func (r *Runner) Dir(id string) string { return filepath.Join(r.disks.Sandboxes(), id) }

// Limits lists the resources that can be limited here.
func (r *Runner) Limits() []string {
	limits := []string{"disk", "files"}
	for _, c := range []string{"cpu", "memory", "pids"} {
		if r.groups.Has(c) || c == "pids" && rootless() {
			limits = append(limits, c)
		}
	}
	if r.launcher.device != "" {
		limits = append(limits, "disk_rate")
	}
	return limits
}

// Missing describes missing features of control groups.
func (r *Runner) Missing() []string { return r.groups.Missing() }

func rootless() bool { return os.Geteuid() != 0 }
