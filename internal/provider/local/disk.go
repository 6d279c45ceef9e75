package local

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/cove-sandbox/cove/internal/isolate"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// A sandbox's folder:
//
//	state.json  its record
//	log.0 log.1 exit control    written by its init through open files only
//	run/        the only folder that the sandbox can write: its server's socket
//	out/        read-only inside: the socket of the way out
//
// Its disk is a stack of layers in the store. A layer has one folder per tree
// (root, usr, …), and work; it is written through the sandbox's overlays.

func (b *box) path(elem ...string) string {
	return filepath.Join(append([]string{b.dir}, elem...)...)
}

// workName is the folder of a layer that belongs to the overlays themselves.
const workName = "work"

// upper is the layer that takes the changes.
func (b *box) upper() string { return b.rec.Layers[len(b.rec.Layers)-1] }

// trees lists the overlays of a sandbox's root: targets and the names of their
// folders in a layer.
func (p *Provider) trees(b *box) (targets, names []string) {
	targets, names = []string{"/"}, []string{"root"}
	if b.rec.Image == nil {
		for _, t := range p.root.Trees {
			targets, names = append(targets, t), append(names, filepath.Base(t))
		}
	}
	return targets, names
}

// makeDisk makes the sandbox's folder and, above the layers it starts from, an
// empty one that is its own.
func (p *Provider) makeDisk(b *box) error {
	if err := os.Mkdir(b.dir, 0o700); err != nil {
		return fmt.Errorf("make sandbox folder: %w", err)
	}
	if b.rec.Image == nil && b.rec.Base == "" {
		b.rec.Base = filepath.Base(p.root.Base)
	}
	err := errors.Join(p.makeFolder(b.path("run"), isolate.UID), p.makeFolder(b.path("out"), 0))
	if err != nil {
		return err
	}
	layer, err := p.makeUpper(b)
	if err == nil {
		b.rec.Layers = append(b.rec.Layers, layer)
	}
	return err
}

// makeFolder makes a folder for a user inside. Whatever our umask is, inside it
// is open like on any machine.
func (p *Provider) makeFolder(path string, id int) error {
	if err := errors.Join(os.Mkdir(path, 0o755), os.Chmod(path, 0o755), p.own(path, id)); err != nil {
		return fmt.Errorf("make sandbox folder: %w", err)
	}
	return nil
}

// makeUpper makes a layer that holds only the sandbox's name, and holds on to it.
func (p *Provider) makeUpper(b *box) (layer string, err error) {
	layer = newLayer()
	p.hold(layer)
	defer func() {
		if err != nil {
			err = errors.Join(err, p.drop(layer))
		}
	}()
	if err := p.store.create(layer); err != nil {
		return layer, fmt.Errorf("make layer: %w", err)
	}
	top := p.store.path(layer)
	if err := errors.Join(os.Chmod(top, 0o755), p.own(top, 0), p.makeFolder(filepath.Join(top, workName), 0)); err != nil {
		return layer, err
	}
	_, names := p.trees(b)
	for _, n := range names {
		if err := errors.Join(p.makeFolder(filepath.Join(top, n), 0), p.makeFolder(filepath.Join(top, workName, n), 0)); err != nil {
			return layer, err
		}
	}
	return layer, p.nameHost(b, filepath.Join(top, "root", "etc"))
}

func (p *Provider) nameHost(b *box, etc string) error {
	if err := p.makeFolder(etc, 0); err != nil {
		return err
	}
	host := hostname(b)
	for name, text := range map[string]string{
		"hostname": host + "\n",
		"hosts":    "127.0.0.1 localhost " + host + "\n::1 localhost ip6-localhost ip6-loopback\n",
	} {
		at := filepath.Join(etc, name)
		if err := errors.Join(os.WriteFile(at, []byte(text), 0o644), os.Chmod(at, 0o644), p.own(at, 0)); err != nil {
			return fmt.Errorf("make sandbox folder: %w", err)
		}
	}
	return nil
}

func hostname(b *box) string { return b.rec.Sandbox.ID }

// isolation describes the sandbox to package isolate. Done must be called when
// it has been started.
func (p *Provider) isolation(b *box) (cfg isolate.Config, done func(), err error) {
	spec := p.complete(b)
	cfg = isolate.Config{
		Argv: p.init, Hostname: hostname(b), IDs: p.ids(b.rec.Slot), LogSize: p.cfg.LogSize,
		Tmpfs:   []isolate.Tmpfs{{Target: "/run", Mode: 0o755, Size: 64 << 20}, {Target: "/run/user/1000", Mode: 0o700, Size: 64 << 20, UID: isolate.UID, GID: isolate.GID}, {Target: "/run/lock", Mode: 0o1777, Size: 4 << 20}},
		ShmSize: spec.Resources.MemoryLimit / 2,
		Limits:  limits(spec.Resources),
		Process: isolate.Process{Args: append(spec.Command, spec.Args...), Env: environ(spec), Dir: spec.Workdir, UID: isolate.UID, GID: isolate.GID},
	}
	cfg.Root = p.overlays(b)
	for _, m := range p.binds {
		// A program is for everyone, whoever owns it, and not all kernels can map owners in memory.
		cfg.Binds = append(cfg.Binds, isolate.Bind{Source: isolate.Dir{Path: m.Source, Mapped: p.hostMapped && !m.program}, Target: m.Target, ReadOnly: true})
	}
	cfg.Binds = append(cfg.Binds,
		isolate.Bind{Source: isolate.Dir{Path: b.path("run"), Mapped: p.mapped}, Target: serverDir},
		isolate.Bind{Source: isolate.Dir{Path: b.path("out"), Mapped: p.mapped}, Target: egressDir, ReadOnly: true})
	for _, v := range spec.Volumes {
		path, err := p.useVolume(spec.Owner, v.Name)
		if err != nil {
			return cfg, nil, err
		}
		cfg.Binds = append(cfg.Binds, isolate.Bind{Source: isolate.Dir{Path: path, Mapped: p.mapped}, Target: v.Target, ReadOnly: v.ReadOnly})
	}
	done, err = b.files(&cfg, p.handsOver(spec))
	if err == nil && cfg.Listen != nil {
		err = p.own(b.path("run", serverSocket), isolate.UID)
	}
	return cfg, done, err
}

// handsOver tells whether the program gets its server's socket from us.
func (p *Provider) handsOver(spec sandbox.Spec) bool {
	for k, v := range p.cfg.CommandEnv {
		if spec.Env[k] != v {
			return false
		}
	}
	return len(p.cfg.CommandEnv) > 0 && spec.Server.Port == 0 && slices.Equal(spec.Command, p.cfg.Command)
}

func (p *Provider) ids(slot uint32) isolate.IDs {
	if rootless() {
		return isolate.IDs{}
	}
	return isolate.IDs{Base: p.cfg.FirstID + slot*idRange, Count: idRange}
}

// overlays stacks the layers of each tree, the newest on top, over the host's
// tree or the image.
func (p *Provider) overlays(b *box) (root []isolate.Overlay) {
	top := p.store.path(b.upper())
	targets, names := p.trees(b)
	for i, target := range targets {
		o := isolate.Overlay{Target: target, Upper: isolate.Dir{Path: top, Mapped: p.mapped}, Data: names[i], Work: filepath.Join(workName, names[i])}
		for n := len(b.rec.Layers) - 2; n >= 0; n-- {
			// The host may have got another tree since the layer was made.
			if path := p.store.path(b.rec.Layers[n], names[i]); exists(path) {
				o.Lower = append(o.Lower, isolate.Dir{Path: path, Mapped: p.mapped})
			}
		}
		switch {
		case b.rec.Image != nil:
			for _, l := range b.rec.Image.Layers {
				o.Lower = append(o.Lower, isolate.Dir{Path: l, Mapped: p.mapped})
			}
		case target == "/":
			o.Lower = append(o.Lower, isolate.Dir{Path: filepath.Join(p.cfg.Dir, "base", b.rec.Base), Mapped: p.mapped})
		default:
			o.Lower = append(o.Lower, isolate.Dir{Path: target, Mapped: p.hostMapped})
		}
		root = append(root, o)
	}
	return root
}

// files opens what init writes to, fresh for each run, and empties the folder of
// the server's socket, which holds whatever the sandbox left there.
func (b *box) files(cfg *isolate.Config, listen bool) (done func(), err error) {
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
	// Without root the sandbox's user is ours, and may have closed it to us.
	if err := os.Chmod(b.path("run"), 0o755); err != nil {
		return done, err
	}
	dir, err := os.Open(b.path("run"))
	if err != nil {
		return done, err
	}
	defer dir.Close()
	if err := each(dir, func(e os.DirEntry) error { return removeTree(b.path("run", e.Name())) }); err != nil {
		return done, err
	}
	socket := func(dir *os.File, name string) (*os.File, error) {
		l, err := isolate.ListenUnix(dir, name, 0o600)
		if err != nil {
			return nil, err
		}
		defer l.Close()
		f, err := l.File()
		if err == nil {
			open = append(open, f)
		}
		return f, err
	}
	for name, f := range map[string]**os.File{"log.0": &cfg.Log[0], "log.1": &cfg.Log[1], "exit": &cfg.Exit} {
		if *f, err = os.OpenFile(b.path(name), os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600); err != nil {
			return done, err
		}
		open = append(open, *f)
	}
	own, err := os.Open(b.dir)
	if err != nil {
		return done, err
	}
	defer own.Close()
	if cfg.Control, err = socket(own, "control"); err == nil && listen {
		cfg.Listen, err = socket(dir, serverSocket)
	}
	return done, err
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// complete returns the spec with what it leaves to the image or to the provider.
func (p *Provider) complete(b *box) sandbox.Spec {
	spec, img := b.rec.Sandbox.Spec.Clone(), Image{Command: p.cfg.Command, Workdir: isolate.Home}
	if b.rec.Image != nil {
		img = *b.rec.Image
		// An image's own program is what the spec expects only if it says on which
		// port that serves; otherwise any image gets our server.
		if len(img.Command) == 0 || spec.Server.Port == 0 && len(p.cfg.Command) > 0 {
			img.Command = p.cfg.Command
		}
	}
	def := func(v *int64, d int64) {
		if *v == 0 {
			*v = d
		}
	}
	r, d := &spec.Resources, p.cfg.Defaults
	def(&r.CPU, d.CPU)
	def(&r.CPULimit, d.CPULimit)
	def(&r.MemoryLimit, max(d.MemoryLimit, r.Memory))
	def(&r.Pids, d.Pids)
	def(&r.Files, d.Files)
	def(&r.Disk, d.Disk)
	spec.Server.ReadyTimeout = cmp.Or(spec.Server.ReadyTimeout, p.cfg.ReadyTimeout)
	spec.Server.ReadyPath = cmp.Or(spec.Server.ReadyPath, "/readyz")
	if len(spec.Command) == 0 {
		spec.Command = slices.Clone(img.Command)
	}
	spec.Workdir = cmp.Or(spec.Workdir, img.Workdir, isolate.Home)
	env := map[string]string{"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": isolate.Home, "USER": isolate.User,
		"LOGNAME": isolate.User, "SHELL": "/bin/bash", "LANG": "C.UTF-8", "XDG_RUNTIME_DIR": "/run/user/1000"}
	for _, more := range []map[string]string{img.Env, p.cfg.Env, spec.Env} {
		maps.Copy(env, more)
	}
	if slices.Equal(spec.Command, p.cfg.Command) && spec.Server.Port == 0 && !overlap(env, p.cfg.CommandEnv) {
		maps.Copy(env, p.cfg.CommandEnv)
	}
	env[sandbox.EnvEgress] = "unix:" + filepath.Join(egressDir, egressSocket)
	env[sandbox.EnvListen] = "unix:" + filepath.Join(serverDir, serverSocket)
	if spec.Server.Port != 0 {
		env[sandbox.EnvListen] = fmt.Sprintf("tcp:127.0.0.1:%d", spec.Server.Port)
	}
	spec.Env = env
	return spec
}

func overlap(a, b map[string]string) bool {
	for k := range b {
		if _, ok := a[k]; ok {
			return true
		}
	}
	return false
}

func limits(r sandbox.Resources) isolate.Limits {
	return isolate.Limits{CPU: r.CPULimit, Share: r.CPU, Memory: r.MemoryLimit, Pids: r.Pids, Files: r.Files, FileSize: r.Disk}
}

func environ(spec sandbox.Spec) []string {
	env := make([]string, 0, len(spec.Env))
	for k, v := range spec.Env {
		env = append(env, k+"="+v)
	}
	return env
}
