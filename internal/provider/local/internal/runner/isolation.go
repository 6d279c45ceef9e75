package runner

import (
	"cmp"
	"fmt"
	"os"

	"github.com/cove-sandbox/cove/internal/provider/local/internal/socket"
	"github.com/cove-sandbox/cove/internal/sandbox"
	"github.com/cove-sandbox/cove/internal/system/isolate"
)

// makeFolder creates the folder of a sandbox, and its disk above the layers it starts from.
func (l *launcher) makeFolder(b *box) error {
	if err := os.Mkdir(b.dir, 0o700); err != nil {
		return fmt.Errorf("create sandbox folder: %w", err)
	}
	d, err := l.disks.Grow(b.rec.Disk, b.rec.hostname())
	if err != nil {
		return err
	}
	b.rec.Disk = d
	return l.setDiskLimit(b)
}

// setDiskLimit sets the disk limit in the filesystem, if it has quotas.
func (l *launcher) setDiskLimit(b *box) error {
	spec := b.rec.Sandbox.Spec
	return l.disks.SetLimit(b.rec.Disk, spec.Owner, cmp.Or(spec.Resources.Disk, l.cfg.Defaults.Disk))
}

// isolation describes the sandbox, whose completed spec is given, to package
// isolate. Done must be called after it has been started.
func (l *launcher) isolation(b *box, spec sandbox.Spec) (cfg isolate.Config, done func(), err error) {
	mapping := l.disks.Mapping()
	cfg = isolate.Config{
		Argv: l.programs.init, Hostname: b.rec.hostname(), IDs: l.ids.of(b.rec.Slot), LogSize: l.cfg.LogSize,
		Root: l.disks.Overlays(b.rec.Disk),
		Tmpfs: []isolate.Tmpfs{{Target: "/run", Mode: 0o755, Size: 64 << 20},
			{Target: "/run/user/1000", Mode: 0o700, Size: 64 << 20, UID: isolate.UID, GID: isolate.GID},
			{Target: "/run/lock", Mode: 0o1777, Size: 4 << 20}},
		Alias:   isolate.Alias{Path: isolate.HomeAlias, Target: isolate.Home},
		ShmSize: spec.Resources.MemoryLimit / 2,
		Limits:  limits(spec.Resources),
		Process: isolate.Process{Args: append(spec.Command, spec.Args...), Env: environ(spec), Dir: spec.Workdir,
			UID: isolate.UID, GID: isolate.GID},
	}
	if spec.Root {
		cfg.Process.UID, cfg.Process.GID = 0, 0
	}
	if ok, _ := l.disks.HasQuota(); ok {
		cfg.Limits.FileSize = 0 // the filesystem returns an error; this limit would send a signal
	}
	for _, m := range b.savedPrograms(l.programs.binds) {
		// Every user may execute a program, and not all kernels support ID-mapped mounts of tmpfs. With root it is in
		// tmpfs, at a path that does not reveal anything.
		cfg.Binds = append(cfg.Binds, isolate.Bind{Source: isolate.Dir{Path: m.Source, Mapped: mapping.Host && !m.program, OfHost: true},
			Target: m.Target, ReadOnly: true, Hidden: !m.program || rootless()})
	}
	l.addSudo(&cfg, spec)
	for _, v := range spec.Volumes {
		path, err := l.cfg.Volumes.Use(spec.Owner, v.Name)
		if err != nil {
			return cfg, nil, err
		}
		cfg.Binds = append(cfg.Binds, isolate.Bind{Source: isolate.Dir{Path: path, Mapped: mapping.State},
			Target: v.Target, ReadOnly: v.ReadOnly})
	}
	done, err = b.openFiles(&cfg, l.defaults.passesSocket(spec))
	if err != nil {
		return cfg, done, err
	}
	if ids := cfg.IDs; cfg.Listen != nil && ids.Count > 0 {
		user := int(ids.Base + cfg.Process.UID)
		if err = os.Lchown(socket.ServerSocket(b.sockets), user, user); err != nil {
			done()
		}
	}
	socket.Show(b.sockets, &cfg)
	cfg.Egress = socket.EgressPath
	if err == nil && spec.Isolation == GVisor {
		if err = l.addGVisor(&cfg, b, spec); err != nil {
			done()
		}
	}
	return cfg, done, err
}

// openFiles creates the files that init writes to, for each run, and its sockets.
func (b *box) openFiles(cfg *isolate.Config, wantServer bool) (done func(), err error) {
	var open []*os.File
	done = func() {
		for _, f := range open {
			f.Close()
		}
	}
	defer func() {
		if err != nil {
			done()
		}
	}()
	for name, f := range map[string]**os.File{logName0: &cfg.Log[0], logName1: &cfg.Log[1], exitName: &cfg.Exit} {
		if *f, err = os.OpenFile(b.path(name), os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600); err != nil {
			return done, err
		}
		open = append(open, *f)
	}
	if cfg.Control, cfg.Listen, err = socket.Listen(b.sockets, wantServer); err != nil {
		return done, err
	}
	open = append(open, cfg.Control)
	if cfg.Listen != nil {
		open = append(open, cfg.Listen)
	}
	return done, nil
}
