// Package local makes sandboxes on this machine with nothing installed: each is a
// tree of namespaces built by package isolate, over the host's own programs or an
// unpacked image.
//
// It owns a state folder: one folder per sandbox with its record, its disk and its
// sockets, and a lock that keeps a second hub out. What the sandbox can write is
// kept apart from what the hub writes, and the hub never follows a link that could
// have been planted there. It refuses host paths in specs; the operator's Config
// alone names those.
package local

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/isolate"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// Where sandboxes find what the hub gives them.
const (
	serverDir    = "/run/aio"
	serverSocket = "aio.sock"
	egressDir    = "/run/cove"
	egressSocket = "egress.sock"
)

// Isolation is the kind of isolation this provider offers.
const Isolation = "namespaces"

// Config says where and how sandboxes are made. Zero fields have defaults, except
// Dir and Init.
type Config struct {
	// Dir is the state folder. It is made if needed, for its owner only, and must
	// not be on an overlay filesystem.
	Dir string
	// Init starts this program as a sandbox's init; see isolate.Config.Argv.
	Init []string
	// Command runs in sandboxes whose spec has none, with CommandEnv, all or
	// nothing of it: whose environment has any of it wants something else. With it
	// goes the server's socket, which listens already, as isolate.ListenFD.
	Command    []string
	CommandEnv map[string]string
	// Binds shows files and folders of the host in every sandbox, read-only.
	Binds []Bind
	// Env is part of every sandbox's environment; a spec's own goes before it.
	Env map[string]string
	// Defaults stand in for what a spec leaves open.
	Defaults sandbox.Resources
	// FirstID is the first of the host's user IDs that sandboxes may use, 65536 each.
	FirstID uint32
	// Cgroup is a delegated cgroup v2 group to work below.
	Cgroup string
	// Images unpacks images; without it specs with an image are refused.
	Images Images
	// Saver writes sandboxes as images; without it Export is refused.
	Saver Saver
	// ImageSize bounds the filesystem that is made for disks, in a file, where the
	// state folder's own cannot copy a folder at once; nine tenths of what is free
	// if zero. The file takes only what is used. NoImage makes none: snapshots and
	// forks then copy file by file.
	ImageSize int64
	NoImage   bool

	// Spares is how many inits are kept started ahead, at least, which makes a create
	// some milliseconds shorter; MostSpares, how many when as many were lately
	// missed. It needs root.
	Spares, MostSpares int

	ReadyTimeout time.Duration // of specs that have none
	StopGrace    time.Duration // from the polite request to the end
	LogSize      int64         // kept of a program's output, twice
	Log          *slog.Logger

	unmapped bool // as if no filesystem could translate owners; for tests
}

// Bind shows a file or folder of the host inside.
type Bind struct{ Source, Target string }

// Images brings images to this machine.
type Images interface {
	// Resolve unpacks the image, if it is not yet, and keeps it until the
	// machine's owner removes it.
	Resolve(ctx context.Context, ref string) (Image, error)
}

// Image is an unpacked image.
type Image struct {
	// Layers are folders, topmost first, with owners as inside the image.
	Layers []string `json:"layers"`
	// Command, Env and Workdir hold where a spec has none.
	Command []string          `json:"command,omitempty"`
	Env     map[string]string `json:"env,omitempty"`
	Workdir string            `json:"workdir,omitempty"`
}

func (c *Config) fill() error {
	if !filepath.IsAbs(c.Dir) || len(c.Init) == 0 {
		return errors.New("local provider: give an absolute Dir, and Init")
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
	def(&c.LogSize, 1<<20)
	def((*int64)(&c.ReadyTimeout), int64(30*time.Second))
	def((*int64)(&c.StopGrace), int64(10*time.Second))
	if c.FirstID == 0 {
		c.FirstID = 2_000_000_000 // above what distributions hand out to users
	}
	if c.Log == nil {
		c.Log = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	return nil
}

// idRange is how many user IDs a sandbox has.
const idRange = 65536

// Provider implements sandbox.Provider.
type Provider struct {
	cfg    Config
	lock   *os.File
	root   isolate.HostRoot
	groups *isolate.Cgroups
	table  *sandbox.Table[*box]
	store  *store
	// mapped says that the state folder's filesystem can translate owners;
	// hostMapped says it of the host's programs.
	mapped, hostMapped bool

	init   []string // as in the config, or in memory
	binds  []shown
	starts chan struct{} // holds one for each that starts
	idle   idle
	spares spares

	mu       sync.Mutex
	slots    map[uint32]bool     // ranges of user IDs in use
	refs     map[string]int      // how many disks stand on a layer
	snaps    map[named]*snapshot // nil while it is taken
	unsynced map[string]bool     // folders of records that may not be on the disk yet
	once     sync.Once
	end      error

	lastWhole atomic.Pointer[size] // of the disks' filesystem; the watcher's

	volumes sync.Mutex // held while volumes are made, counted or deleted
}

var (
	_ sandbox.Provider    = (*Provider)(nil)
	_ sandbox.Logger      = (*Provider)(nil)
	_ sandbox.Stater      = (*Provider)(nil)
	_ sandbox.Egresser    = (*Provider)(nil)
	_ sandbox.Snapshotter = (*Provider)(nil)
	_ sandbox.Forker      = (*Provider)(nil)
	_ sandbox.Differ      = (*Provider)(nil)
	_ sandbox.Volumer     = (*Provider)(nil)
	_ sandbox.Exporter    = (*Provider)(nil)
)

// box is what the provider keeps of one sandbox.
type box struct {
	rec   record
	dir   string
	run   *isolate.Handle // nil while nothing runs
	spare *isolate.Spare  // to be its init, until it is launched
	group *isolate.Group
	usage usage // of the disk; the watcher's
}

// Open takes hold of the state folder, adopts what lives, removes what is half
// made, and tries out that sandboxes can be made here.
func Open(ctx context.Context, cfg Config) (*Provider, error) {
	if err := cfg.fill(); err != nil {
		return nil, err
	}
	for _, d := range []string{"base", "snapshots", "volumes"} {
		if err := makePrivate(filepath.Join(cfg.Dir, d)); err != nil {
			return nil, fmt.Errorf("make state folder: %w", err)
		}
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(cfg.Dir, &fs); err == nil && fs.Type == unix.OVERLAYFS_SUPER_MAGIC {
		return nil, fmt.Errorf("state folder %s is on an overlay filesystem, which cannot hold another; use one on ext4, xfs, btrfs or tmpfs", cfg.Dir)
	}
	lock, err := lockDir(cfg.Dir)
	if err != nil {
		return nil, err
	}
	p := &Provider{cfg: cfg, lock: lock, starts: make(chan struct{}, runtime.NumCPU()+1), table: sandbox.NewTable[*box](), slots: map[uint32]bool{}, refs: map[string]int{}, snaps: map[named]*snapshot{}, unsynced: map[string]bool{}}
	if err := p.open(ctx); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

func (p *Provider) open(ctx context.Context) (err error) {
	if p.store, err = openStore(p.cfg); err != nil {
		return fmt.Errorf("open the sandboxes' disks: %w", err)
	}
	sum := sha256.Sum256([]byte(p.cfg.Dir))
	if p.groups, err = isolate.OpenCgroups("cove-"+hex.EncodeToString(sum[:4]), p.cfg.Cgroup); err != nil {
		return err
	}
	p.loadPrograms()
	if err := p.try(ctx); err != nil {
		return fmt.Errorf("sandboxes cannot be made here: %w", err)
	}
	if err := p.adopt(ctx); err != nil {
		return err
	}
	p.spares.want = p.cfg.Spares
	p.table.Go(p.watch)
	p.refill()
	return nil
}

const lockPause = 5 * time.Millisecond

// lockDir keeps other hubs out for as long as this process lives.
func lockDir(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	// A child that a killed hub had just begun to start holds the lock until it
	// has become the other program.
	for range 100 {
		if err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); !errors.Is(err, unix.EWOULDBLOCK) {
			break
		}
		time.Sleep(lockPause)
	}
	if err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("%w: %s", sandbox.ErrInUse, dir)
		}
		return nil, fmt.Errorf("lock %s: %w", dir, err)
	}
	return f, nil
}

func rootless() bool { return os.Geteuid() != 0 }

// try makes a sandbox that ends at once, with owners translated as far as the
// filesystems allow.
func (p *Provider) try(ctx context.Context) error {
	ways := []struct{ state, host bool }{{true, true}, {true, false}, {false, false}}
	if rootless() || p.cfg.unmapped {
		ways = ways[2:]
	}
	var err error
	for _, w := range ways {
		p.mapped, p.hostMapped = w.state, w.host
		if err = p.tryOnce(ctx); !errors.Is(err, isolate.ErrNoIDMap) {
			break
		}
	}
	return err
}

func (p *Provider) tryOnce(ctx context.Context) (err error) {
	if p.root, err = isolate.BuildHostRoot(filepath.Join(p.cfg.Dir, "base"), p.owner()); err != nil {
		return err
	}
	b := &box{dir: filepath.Join(filepath.Dir(p.store.boxes), "trial"), rec: record{Sandbox: sandbox.Sandbox{ID: "trial"}, Slot: 0}}
	if err := removeTree(b.dir); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, removeTree(b.dir)) }()
	defer func() { err = errors.Join(err, p.drop(b.rec.Layers...)) }()
	if err := p.makeDisk(b); err != nil {
		return err
	}
	cfg, done, err := p.isolation(b)
	if err != nil {
		return err
	}
	defer done()
	cfg.Process.Args = nil
	if b.group, err = p.groups.Make("trial", cfg.Limits); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.group.Remove(context.WithoutCancel(ctx))) }()
	cfg.Group = b.group
	h, _, err := isolate.Start(ctx, cfg)
	if err != nil {
		return err
	}
	<-h.Done()
	return h.Close()
}

// owner is the host ID that owns, on disk, what root inside owns; -1 without root.
func (p *Provider) owner() int {
	switch {
	case rootless():
		return -1
	case p.mapped:
		return 0
	default:
		return int(p.cfg.FirstID)
	}
}

// own gives a path to a user inside.
func (p *Provider) own(path string, id int) error {
	if p.owner() < 0 {
		return nil
	}
	return os.Lchown(path, p.owner()+id, p.owner()+id)
}

// Close implements sandbox.Provider.
func (p *Provider) Close() error {
	p.once.Do(func() {
		p.table.Close(sandbox.ErrClosed)
		p.idle.close()
		spares := p.closeSpares()
		p.table.Each(func(b *box) {
			if b != nil && b.run != nil {
				b.run.Close()
			}
		})
		if p.store != nil {
			p.end = p.store.close()
		}
		p.end = errors.Join(p.end, closePrograms(p.cfg.Dir))
		if p.groups != nil {
			p.end = errors.Join(p.end, p.groups.Close())
		}
		p.end = errors.Join(p.end, spares, p.lock.Close())
	})
	return p.end
}

// Abilities implements sandbox.Provider.
func (p *Provider) Abilities() sandbox.Abilities {
	a := sandbox.Abilities{Provider: "local", Pause: p.groups.Has("freezer"), Stop: true, AnyPort: true, Image: p.cfg.Images != nil, Volume: true,
		Egress: true, Logs: true, Stats: true, Snapshot: true, Fork: true, Diff: true, Export: p.cfg.Saver != nil, Isolation: []string{Isolation}, Limits: []string{"disk", "files"}, Missing: p.groups.Missing()}
	for _, c := range []string{"cpu", "memory", "pids"} {
		if p.groups.Has(c) || c == "pids" && rootless() {
			a.Limits = append(a.Limits, c)
		}
	}
	slices.Sort(a.Limits)
	if !p.store.subvol {
		a.Missing = append(a.Missing, fmt.Sprintf("snapshots and forks copy a disk file by file: %v; run as root on a kernel with btrfs and loop devices, or keep the state folder on btrfs", p.store.why))
		if !a.Pause {
			a.Missing = append(a.Missing, "snapshots and forks only of stopped sandboxes: a running one cannot be made to stand still meanwhile")
		}
	}
	if rootless() {
		a.Missing = append(a.Missing, "without root all users inside are one: files of others show as nobody's, and root inside cannot be had",
			"without root programs inside can learn the names and addresses of this machine's network interfaces, through the connections of their server")
	}
	return a
}

// slot takes a range of user IDs that no other sandbox has. Without translation
// of owners all must share one, or their disks could not be shared.
func (p *Provider) slot() (uint32, error) {
	if !p.mapped {
		return 0, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	n := uint32(1)
	for p.slots[n] {
		n++
	}
	if n >= (math.MaxUint32-p.cfg.FirstID)/idRange {
		return 0, fmt.Errorf("%w: all ranges of user IDs are in use; delete sandboxes", sandbox.ErrExhausted)
	}
	p.slots[n] = true
	return n, nil
}

func (p *Provider) freeSlot(n uint32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.slots, n)
}
