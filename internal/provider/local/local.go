// Package local runs sandboxes on this machine without installation: each consists of namespaces that package
// isolate creates, over the host's programs or an unpacked image.
//
// It owns a state folder: one folder per sandbox with its record and its sockets, the disks, and a lock that excludes
// other hubs. Files that a sandbox can write are separate from those of the hub, and the hub never follows links of a
// sandbox. Specs cannot contain host paths; only Config can.
//
// It composes the packages runner (lifecycle), disk (disks) and socket (connections).
package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/filesystem/lockfile"
	"github.com/cove-sandbox/cove/internal/provider/local/internal/disk"
	"github.com/cove-sandbox/cove/internal/provider/local/internal/image"
	"github.com/cove-sandbox/cove/internal/provider/local/internal/layer"
	"github.com/cove-sandbox/cove/internal/provider/local/internal/runner"
	"github.com/cove-sandbox/cove/internal/provider/local/internal/socket"
	"github.com/cove-sandbox/cove/internal/provider/local/internal/tree"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// Provider implements sandbox.Provider.
type Provider struct {
	lock      *os.File
	runner    *runner.Runner
	sockets   socket.Dialer
	disks     *disk.Store
	snapshots *disk.Snapshots
	volumes   *disk.Volumes

	opened atomic.Bool // all parts are set
	once   sync.Once
	end    error
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
	_ sandbox.Importer    = (*Provider)(nil)
	_ sandbox.Saver       = (*Provider)(nil)

	_ sandbox.ImageCounter = (*Provider)(nil)
	_ sandbox.Layerer      = (*Provider)(nil)
	_ sandbox.Imager       = (*Provider)(nil)
)

// Open locks the state folder, checks that sandboxes can run here, adopts existing sandboxes and removes unfinished
// ones.
func Open(ctx context.Context, cfg Config) (*Provider, error) {
	if err := cfg.fill(); err != nil {
		return nil, err
	}
	for _, d := range []string{"base", "snapshots"} {
		if err := tree.MakePrivate(filepath.Join(cfg.Dir, d)); err != nil {
			return nil, fmt.Errorf("create state folder: %w", err)
		}
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(cfg.Dir, &fs); err == nil && fs.Type == unix.OVERLAYFS_SUPER_MAGIC {
		return nil, fmt.Errorf("state folder %s is on an overlay filesystem, which does not support nested overlays; use a folder on "+
			"ext4, xfs, btrfs or tmpfs", cfg.Dir)
	}
	lock, err := lockDir(cfg.Dir)
	if err != nil {
		return nil, err
	}
	if tree.Exists(filepath.Join(cfg.Dir, restoringName)) {
		lock.Close()
		return nil, fmt.Errorf("a restore into state folder %s was interrupted; remove the folder and rerun cove restore", cfg.Dir)
	}
	p := &Provider{lock: lock}
	if err := p.open(ctx, cfg); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

func (p *Provider) open(ctx context.Context, cfg Config) (err error) {
	if err := p.openDisks(cfg); err != nil {
		return err
	}
	if p.volumes, err = p.disks.OpenVolumes(cfg.VolumeSize); err != nil {
		return err
	}
	var unreadable error
	if p.snapshots, unreadable = p.disks.OpenSnapshots(); errors.Is(unreadable, disk.ErrUnreadable) {
		cfg.Log.Error("cannot read the record of a snapshot; ignoring the snapshot", "error", unreadable)
	} else if unreadable != nil {
		return unreadable
	}
	p.runner, err = runner.Open(ctx, runner.Config{
		Dir: cfg.Dir, Init: cfg.Init, Runsc: cfg.Runsc, Sudo: cfg.Sudo, Command: cfg.Command,
		CommandEnv: cfg.CommandEnv, DoorEnv: cfg.DoorEnv, Env: cfg.Env, Defaults: cfg.Defaults,
		Binds: cfg.Binds, FirstID: cfg.FirstID, Cgroup: cfg.Cgroup, Spares: cfg.Spares, MaxSpares: cfg.MaxSpares,
		ReadyTimeout: cfg.ReadyTimeout, StopGrace: cfg.StopGrace, LogSize: cfg.LogSize, Log: cfg.Log, WithoutIDMaps: cfg.withoutIDMaps,
		IDs:   cfg.ids,
		Disks: p.disks, Volumes: p.volumes, Servers: &p.sockets,
	})
	if err != nil {
		return err
	}
	adopted, complete, err := p.runner.Adopt(ctx)
	if err != nil {
		return err
	}
	if complete && unreadable == nil { // otherwise used disks are not all known
		if err := p.disks.RemoveUnused(slices.Concat(adopted, p.snapshots.Disks(nil))); err != nil {
			cfg.Log.Error("cannot remove unused disks; the next start retries", "error", err)
		}
	}
	p.runner.Run()
	p.opened.Store(true)
	p.disks.Images().Sweep() // imports and downloads that the end of a hub interrupted
	return nil
}

// openDisks opens the image store, if it is configured, and the layers.
func (p *Provider) openDisks(cfg Config) (err error) {
	var images *image.Store
	if c := cfg.Images; c.Dir != "" {
		images, err = image.Open(image.Config{
			Dir: c.Dir, Insecure: c.Insecure, Private: c.Private, AuthFile: c.AuthFile, Proxy: c.Proxy,
			Used: p.usedImageLayers, Log: cfg.Log,
		})
		if err != nil {
			return fmt.Errorf("open image store: %w", err)
		}
	}
	layers, err := layer.Open(layer.Config{Dir: cfg.Dir, ImageSize: cfg.ImageSize, NoImage: cfg.NoImage})
	if err != nil {
		err = fmt.Errorf("open the disks of sandboxes: %w", err)
		if images != nil {
			err = errors.Join(err, images.Close())
		}
		return err
	}
	var hidden []string
	for _, b := range cfg.Binds {
		hidden = append(hidden, b.Target)
	}
	p.disks = disk.New(disk.Config{Dir: cfg.Dir, Layers: layers, Images: images, FirstID: cfg.FirstID, Hidden: hidden,
		ImageLayers: p.imageLayersOf, Log: cfg.Log})
	return nil
}

// usedImageLayers lists the image layers that sandboxes and snapshots use. It fails if the list would be incomplete.
func (p *Provider) usedImageLayers() ([]string, error) {
	if !p.opened.Load() {
		return nil, fmt.Errorf("%w: the provider is not ready", sandbox.ErrUnavailable)
	}
	disks, err := p.runner.Disks(nil)
	if err != nil {
		return nil, err
	}
	return imageLayers(append(disks, p.snapshots.Disks(nil)...)), nil
}

// imageLayersOf is usedImageLayers for one owner.
func (p *Provider) imageLayersOf(owner string) ([]string, error) {
	own := func(o string) bool { return o == owner }
	disks, err := p.runner.Disks(own)
	if err != nil {
		return nil, err
	}
	return imageLayers(append(disks, p.snapshots.Disks(own)...)), nil
}

func imageLayers(disks []disk.Disk) (dirs []string) {
	for _, d := range disks {
		if d.Image != nil {
			dirs = append(dirs, d.Image.Layers...)
		}
	}
	slices.Sort(dirs)
	return slices.Compact(dirs)
}

const lockPause = 5 * time.Millisecond

// lockDir excludes other hubs until this process ends.
func lockDir(dir string) (*os.File, error) {
	f, err := lockfile.Open(filepath.Join(dir, "lock"))
	// A child that a killed hub was starting holds the lock until it executes its program.
	for range 100 {
		if !errors.Is(err, lockfile.ErrLocked) {
			return f, err
		}
		time.Sleep(lockPause)
		f, err = lockfile.Open(filepath.Join(dir, "lock"))
	}
	if errors.Is(err, lockfile.ErrLocked) {
		return nil, fmt.Errorf("%w: %s", sandbox.ErrInUse, dir)
	}
	return f, err
}

// Close implements sandbox.Provider.
func (p *Provider) Close() error {
	p.once.Do(func() {
		if p.runner != nil {
			p.end = p.runner.Close()
		}
		p.sockets.Close()
		if p.disks != nil {
			p.end = errors.Join(p.end, p.disks.Close())
		}
		p.end = errors.Join(p.end, p.lock.Close())
	})
	return p.end
}

// machineMemory is the memory of this machine; 0 if unknown.
func machineMemory() int64 {
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) != nil {
		return 0
	}
	return int64(info.Totalram) * int64(info.Unit)
}

// tiers describes the protection of each kind of isolation.
func tiers(kinds []string) (list []string) {
	for _, kind := range kinds {
		switch kind {
		case runner.Namespaces:
			list = append(list, "namespaces: programs cannot see or reach the host or other sandboxes; "+
				"they share the host's kernel: a reachable kernel bug allows escape")
		case runner.GVisor:
			list = append(list, "gvisor: like namespaces, and programs run on gVisor's kernel: a bug in the "+
				"host's kernel alone does not allow escape; system calls are slower")
		}
	}
	return list
}

// Abilities implements sandbox.Provider.
func (p *Provider) Abilities() sandbox.Abilities {
	images := p.disks.HasImages()
	a := sandbox.Abilities{Provider: "local", Pause: true,
		PauseToDisk: p.runner.Saver().Check() == nil, Stop: true, AnyPort: true, Image: images, Volume: true,
		Egress: true, Logs: true, Stats: true, Snapshot: true, Fork: true, Diff: true, Export: images,
		Build:     os.Geteuid() == 0,
		Isolation: p.runner.Isolations(), Limits: p.runner.Limits(), MaxMemory: machineMemory(),
		MaxCPU: int64(runtime.NumCPU()) * 1000, Missing: p.runner.Missing()}
	a.Tiers = tiers(a.Isolation)
	slices.Sort(a.Limits)
	if ok, why := p.disks.Subvolumes(); !ok {
		a.Missing = append(a.Missing, fmt.Sprintf("fast snapshots and forks: disks are copied file by file: %v; run as root "+
			"on a kernel with btrfs and loop devices, or use a state folder on btrfs", why))
	}
	if ok, why := p.disks.HasQuota(); !ok {
		a.Missing = append(a.Missing, fmt.Sprintf("disk quotas: disk usage is measured several times per second "+
			"instead of limited by the filesystem: %v", why))
	}
	if os.Geteuid() != 0 {
		a.Missing = append(a.Missing, "separate users (requires root): a sandbox has one user, files of "+
			"other users belong to nobody, and programs cannot become root",
			"builds of templates (requires root): their steps run as root of the sandbox",
			"hidden network interfaces (requires root): programs can read the names and addresses of this machine's "+
				"network interfaces through the connections of their server")
	}
	return a
}
