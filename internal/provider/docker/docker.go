// Package docker runs sandboxes as containers of a Docker engine, or of another engine with its API. A read-only mount
// adds the hub's server to any image.
//
// A container has no network: sockets in a folder of the sandbox connect the hub to its ports, and its programs to the
// hub's egress proxy. Programs inside cannot reach the host, other sandboxes or the engine. The engine must see the
// hub's state folder at the same path.
//
// The package owns the containers, images and volumes with its label. The labels of a container contain immutable data,
// the record in the sandbox's folder contains the rest. Privileged containers, host paths in specs and host namespaces
// are never used.
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

// Config configures a provider. Dir and Programs are required; other fields have defaults.
type Config struct {
	// Dir is the state folder. The engine must see it at the same path.
	Dir string
	// Host is the address of the engine, such as unix:///var/run/docker.sock; default: that of the docker command.
	Host string
	// Programs maps names in the folder isolate.Programs inside to programs of the host. It must contain cove-container.
	Programs map[string]string
	// Command is the default command. With a server port, the default is the program of the image.
	Command []string
	// Env is added to the environment of every sandbox; the spec takes precedence.
	Env map[string]string
	// Image is the default image.
	Image string
	// Defaults are the default resources.
	Defaults sandbox.Resources
	// Seccomp is the seccomp profile, as JSON; empty means the profile of the engine.
	Seccomp string

	ReadyTimeout time.Duration // default of specs
	StopGrace    time.Duration // from SIGTERM to SIGKILL
	Log          *slog.Logger  `json:"-"`
}

func (c *Config) fill() error {
	if !filepath.IsAbs(c.Dir) || c.Programs[initProgram] == "" {
		return errors.New("docker provider: an absolute Dir and the program cove-container are required")
	}
	if c.Host != "" && !strings.HasPrefix(c.Host, "unix://") {
		return fmt.Errorf("docker provider: unsupported engine %q: a remote engine cannot see the state folder; use the socket of "+
			"a local engine, such as unix:///var/run/docker.sock", c.Host)
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
	instance string // identifies the objects of this state folder on the engine
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

// Open locks the state folder, connects to the engine, adopts existing sandboxes and removes unfinished ones.
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

// instanceOf returns the ID of a hub, because several hubs can use one engine.
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
	if p.abilities, err = p.runner.queryEngine(ctx); err != nil {
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
