// Package docker runs sandboxes as containers of a Docker engine, or of another that
// speaks its API. The hub's own server is injected into any image, read-only.
//
// A container has no network: the hub reaches its ports through a socket in a folder of
// the sandbox, and its programs reach the hub's egress proxy through another. So nothing
// inside can reach the host, its neighbours or the engine. The engine must therefore see the
// hub's state folder, at the same path.
//
// It owns the containers, images and volumes with its label. What can never change is in
// the labels of a container; what can, which an engine's labels cannot hold, is in the record
// in the sandbox's folder. It refuses privileges, host paths and the host's namespaces.
package docker

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/moby/moby/client"

	"github.com/cove-sandbox/cove/internal/filesystem/lockfile"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// Config says where and how sandboxes run. Zero fields have defaults, except Dir and
// Programs.
type Config struct {
	// Dir is the state folder. The engine must see it at the same path.
	Dir string
	// Host is the engine's address, such as unix:///var/run/docker.sock; the default is
	// the engine's own.
	Host string
	// Programs maps names in the folder isolate.Programs inside to programs of the host.
	// One of them must be cove-container.
	Programs map[string]string
	// Command runs in sandboxes whose spec has none, unless that names a port, which
	// means the image's own program.
	Command []string
	// Env is part of every sandbox's environment; the spec's takes precedence.
	Env map[string]string
	// Image is that of specs without one.
	Image string
	// Defaults are the resources of specs that leave them open.
	Defaults sandbox.Resources
	// Seccomp is the seccomp profile, as JSON; empty means the engine's own.
	Seccomp string

	ReadyTimeout time.Duration // of specs that have none
	StopGrace    time.Duration // from SIGTERM to SIGKILL
	Log          *slog.Logger  `json:"-"`
}

func (c *Config) fill() error {
	if !filepath.IsAbs(c.Dir) || c.Programs[initProgram] == "" {
		return errors.New("docker provider: an absolute Dir and the program cove-container are required")
	}
	if c.Host != "" && !strings.HasPrefix(c.Host, "unix://") {
		return fmt.Errorf("docker provider: engine %q: use the socket of an engine on this machine, such as "+
			"unix:///var/run/docker.sock; a remote engine cannot see the state folder", c.Host)
	}
	def := func(v *int64, d int64) {
		if *v == 0 {
			*v = d
		}
	}
	def(&c.Defaults.MemoryLimit, 1<<30)
	def(&c.Defaults.Pids, 1024)
	def((*int64)(&c.ReadyTimeout), int64(time.Minute))
	def((*int64)(&c.StopGrace), int64(10*time.Second))
	if c.Log == nil {
		c.Log = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	return nil
}

// session is the connection to the engine.
type session struct {
	cfg      Config
	instance string // tells the objects of this state folder apart on the engine
	engine   *client.Client
}

// own selects the objects of this state folder.
func (s *session) own() client.Filters {
	return client.Filters{}.Add("label", labelHub+"="+s.instance)
}

// Kind is the only kind of isolation.
const Kind = "container"

// Provider implements sandbox.Provider.
type Provider struct {
	*session
	runner  *runner
	images  *images
	volumes *volumes

	lock      *os.File
	table     *sandbox.Table[*box]
	abilities sandbox.Abilities

	once sync.Once
	end  error
}

var _ interface {
	sandbox.Provider
	sandbox.Logger
	sandbox.Stater
	sandbox.Egresser
	sandbox.Snapshotter
	sandbox.Forker
	sandbox.Differ
	sandbox.Volumer
} = (*Provider)(nil)

// Open locks the state folder, connects to the engine, adopts the sandboxes that exist and
// removes what is unfinished.
func Open(ctx context.Context, cfg Config) (*Provider, error) {
	if err := cfg.fill(); err != nil {
		return nil, err
	}
	for _, d := range []string{cfg.Dir, filepath.Join(cfg.Dir, boxesName), filepath.Join(cfg.Dir, binName)} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return nil, fmt.Errorf("create state folder: %w", err)
		}
	}
	s := &session{cfg: cfg, instance: instanceOf(cfg.Dir)}
	p := &Provider{session: s, table: sandbox.NewTable[*box](), volumes: &volumes{session: s}}
	p.images = &images{session: s, pins: map[string]int{}, reserved: map[string]bool{}}
	p.runner = &runner{session: s, volumes: p.volumes}
	if err := p.open(ctx); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

// instanceOf tells hubs on one engine apart.
func instanceOf(dir string) string {
	sum := sha256.Sum256([]byte(dir))
	return hex.EncodeToString(sum[:4])
}

func (p *Provider) open(ctx context.Context) (err error) {
	p.lock, err = lockfile.Open(filepath.Join(p.cfg.Dir, "lock"))
	switch {
	case errors.Is(err, lockfile.ErrLocked):
		return fmt.Errorf("%w: %s", sandbox.ErrInUse, p.cfg.Dir)
	case err != nil:
		return err
	}
	opts := []client.Opt{client.FromEnv}
	if p.cfg.Host != "" {
		opts = []client.Opt{client.WithHost(p.cfg.Host)}
	}
	if p.engine, err = client.New(opts...); err != nil {
		return fmt.Errorf("connect to the Docker engine: %w", err)
	}
	if p.abilities, err = p.runner.askEngine(ctx); err != nil {
		return err
	}
	if err := p.runner.installPrograms(); err != nil {
		return err
	}
	if err := p.adopt(ctx); err != nil {
		return err
	}
	p.images.collect(ctx)
	p.table.Go(p.follow)
	return nil
}

// Close implements sandbox.Provider.
func (p *Provider) Close() error {
	p.once.Do(func() {
		p.table.Close(sandbox.ErrClosed)
		if p.engine != nil {
			p.end = p.engine.Close()
		}
		if p.lock != nil {
			p.end = errors.Join(p.end, p.lock.Close())
		}
	})
	return p.end
}

// Abilities implements sandbox.Provider.
func (p *Provider) Abilities() sandbox.Abilities {
	a := p.abilities
	a.Isolation, a.Tiers, a.Limits, a.Missing = slices.Clone(a.Isolation), slices.Clone(a.Tiers),
		slices.Clone(a.Limits), slices.Clone(a.Missing)
	return a
}

// Get implements sandbox.Provider.
func (p *Provider) Get(_ context.Context, id string) (sandbox.Sandbox, error) { return p.table.Get(id) }

// List implements sandbox.Provider.
func (p *Provider) List(_ context.Context, f sandbox.Filter) ([]sandbox.Sandbox, error) {
	return p.table.List(f)
}

// Watch implements sandbox.Provider.
func (p *Provider) Watch(ctx context.Context) (<-chan sandbox.Event, error) {
	return p.table.Watch(ctx)
}
