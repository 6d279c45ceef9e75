// Package builder executes recipes. It runs the steps of a build in one sandbox, saves the disk after each step as a
// layer, and reuses the layers of earlier builds of the same owner. Concurrent builds share steps.
//
// It owns the sandbox of a build until the build ends. It knows neither the API of the hub nor that of providers.
package builder

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/hub/internal/templatestore"
	"github.com/cove-sandbox/cove/internal/recipe"
)

// Base is a resolved base.
type Base struct {
	// ID changes when the content of the base changes.
	ID string
	// Origin is the image or environment; Template is empty. Layer is the disk of a template.
	Origin recipe.Base
	Layer  string
	Config recipe.Config
	// Based reports that the base was built for the same users: it already has the user "user".
	Based bool
}

// Command is a command of a step.
type Command struct {
	Args                 []string
	Env                  map[string]string
	User, Workdir, Owner string
	Caches               []Cache
	Secrets              []Secret
}

// Cache is a volume of the owner that a step sees.
type Cache struct{ Volume, Target, Owner, Mode string }

// Secret is a secret that a step sees.
type Secret struct{ ID, Value, Target, Env, Owner, Mode string }

// End is the end of a command. Reason is set if it did not start or was ended.
type End struct {
	Code   int
	Reason string
}

// Transfer is a copy into a sandbox.
type Transfer struct {
	Sources         []string
	To, Owner, Mode string
	Unpack          bool // unpack archives
	Stage           bool // the files are from another stage: they keep their owners
}

// Disk is what a sandbox of a build starts from: a layer or, if that is empty, the origin.
type Disk struct {
	Origin recipe.Base
	Layer  string
	Caches []Cache // to mount
}

// Saving is a disk to save.
type Saving struct {
	Owner, Layer string
	// Secrets are values that the files changed since a time must not contain.
	Secrets map[string]string
	Since   time.Time
	Caches  []Cache
}

// Sandboxes runs the sandboxes of builds.
type Sandboxes interface {
	// Resolve returns a base that is no stage; fresh resolves images again.
	Resolve(ctx context.Context, owner string, b recipe.Base, fresh bool) (Base, error)
	// Create creates a sandbox for a build.
	Create(ctx context.Context, b templatestore.Build, d Disk) (id string, err error)
	Run(ctx context.Context, id string, c Command, line func(text string)) (End, error)
	Copy(ctx context.Context, id string, t Transfer, files io.Reader) (skipped []string, err error)
	// Pack returns an archive of files of a sandbox.
	Pack(ctx context.Context, id string, sources []string) (io.ReadCloser, error)
	// Save ends all processes of steps and saves the disk.
	Save(ctx context.Context, id string, s Saving) (size int64, err error)
	// Keep gives a copy of the sandbox of a failed build to its owner, and returns its name.
	Keep(ctx context.Context, id string) (name string, err error)
	Delete(ctx context.Context, id string)
}

// Config of a Builder.
type Config struct {
	Store     *templatestore.Store
	Sandboxes Sandboxes
	// Builds is the maximum number of concurrent builds; half of them can belong to one owner. Default 8.
	Builds int
	// Queue is the maximum number of waiting builds; default 64.
	Queue int
}

// Builder builds templates.
type Builder struct {
	cfg Config

	mu      sync.Mutex
	steps   map[string]*shared
	running map[string]int // by owner
	total   int
	waiting int
	freed   chan struct{}            // closed when a build ends
	caches  map[string]chan struct{} // used caches by owner and volume; closed when they are free
}

// New returns a builder.
func New(cfg Config) *Builder {
	if cfg.Builds == 0 {
		cfg.Builds = 8
	}
	if cfg.Queue == 0 {
		cfg.Queue = 64
	}
	return &Builder{cfg: cfg, steps: map[string]*shared{}, running: map[string]int{}, freed: make(chan struct{}),
		caches: map[string]chan struct{}{}}
}

// StepError is the failure of a step itself: every build with that step fails.
type StepError struct {
	Step    string // its number, or base
	Message string
}

func (e *StepError) Error() string { return e.Message }

// ErrBusy means that too many builds are waiting.
var ErrBusy = errors.New("too many builds are waiting; try again later")

// Enter waits until a build of an owner may run. Leave must be called when it has ended.
func (b *Builder) Enter(ctx context.Context, owner string) (leave func(), err error) {
	b.mu.Lock()
	if b.waiting >= b.cfg.Queue {
		b.mu.Unlock()
		return nil, ErrBusy
	}
	b.waiting++
	for b.total >= b.cfg.Builds || b.running[owner] >= max(b.cfg.Builds/2, 1) {
		freed := b.freed
		b.mu.Unlock()
		select {
		case <-freed:
		case <-ctx.Done():
		}
		b.mu.Lock()
		if ctx.Err() != nil {
			b.waiting--
			b.mu.Unlock()
			return nil, context.Cause(ctx)
		}
	}
	b.waiting--
	b.total++
	b.running[owner]++
	b.mu.Unlock()
	return sync.OnceFunc(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.total--
		if b.running[owner]--; b.running[owner] == 0 {
			delete(b.running, owner)
		}
		close(b.freed)
		b.freed = make(chan struct{})
	}), nil
}

// shared is a step that a build runs while others wait for it.
type shared struct {
	done chan struct{}
	err  error
}

// Options of a build.
type Options struct {
	Keep    bool              // keep the sandbox of a failed step
	Secrets map[string]string // values by ID; never stored
}

// run is one build in progress.
type run struct {
	*Builder
	Options
	build  *templatestore.Build
	stages map[string]*stage // the finished ones
	mask   *strings.Replacer
}

// Build executes the recipe of a build and completes the build.
func (b *Builder) Build(ctx context.Context, build *templatestore.Build, o Options) error {
	r := &run{Builder: b, Options: o, build: build, stages: map[string]*stage{}, mask: newMask(o.Secrets)}
	rec := build.Recipe
	for _, s := range rec.Stages {
		if _, err := r.execute(ctx, s); err != nil {
			return err
		}
	}
	last, err := r.execute(ctx, recipe.Stage{Base: rec.Base, Steps: rec.Steps})
	if err != nil {
		return err
	}
	build.Layer, build.Origin, build.Config, build.Size = last.layer, last.base.Origin, last.config, last.size
	return nil
}

// execute executes a stage.
func (r *run) execute(ctx context.Context, def recipe.Stage) (*stage, error) {
	s := &stage{run: r, name: def.Name}
	if from := r.stages[def.Base.Stage]; from != nil {
		s.base, s.config, s.layer, s.parent, s.made = from.base, from.config, from.layer, from.parent, from.made
	} else {
		base, err := r.cfg.Sandboxes.Resolve(ctx, r.build.Owner, def.Base, r.build.Recipe.Force || r.build.Recipe.Pull)
		if err != nil {
			return nil, &BaseError{err}
		}
		s.base, s.config, s.layer, s.parent, s.made = base, base.Config, base.Layer, base.ID, base.Config.Workdir
	}
	defer s.drop(ctx)
	if r.build.Recipe.Login && !s.base.Based {
		s.config.User, s.config.Workdir = "user", "/home/user"
		s.made = s.config.Workdir
		user := recipe.Step{Kind: recipe.User, User: "user", Text: "USER user"}
		if err := s.step(ctx, user, "base"); err != nil {
			return nil, err
		}
	}
	title := cmp.Or(def.Name, "builder")
	for i, step := range def.Steps {
		name := strconv.Itoa(i + 1)
		if def.Name != "" {
			name = def.Name + "/" + name
		}
		r.log("info", name, "[%s %d/%d] %s", title, i+1, len(def.Steps), step)
		if err := s.step(ctx, step, name); err != nil {
			return nil, err
		}
	}
	if s.config.Workdir != s.made { // by no step with a layer
		if err := s.step(ctx, recipe.Step{Kind: recipe.Workdir, Path: s.config.Workdir, Text: "WORKDIR " + s.config.Workdir}, ""); err != nil {
			return nil, err
		}
	}
	r.stages[def.Name] = s
	return s, nil
}

// BaseError means that a base could not be resolved.
type BaseError struct{ Err error }

func (e *BaseError) Error() string { return e.Err.Error() }

func (e *BaseError) Unwrap() error { return e.Err }

func (r *run) log(level, step, format string, args ...any) {
	r.cfg.Store.Append(r.build.Owner, r.build.ID, templatestore.Entry{Level: level, Step: step,
		Text: r.mask.Replace(fmt.Sprintf(format, args...))})
}
