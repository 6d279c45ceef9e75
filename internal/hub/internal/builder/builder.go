// Package builder executes recipes. It runs the steps of a build in one sandbox, saves the disk after each step as a
// layer, and reuses the layers of earlier builds of the same owner. Concurrent builds share steps.
//
// It owns the sandbox of a build until the build ends. It knows neither the API of the hub nor that of providers.
package builder

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
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
}

// End is the end of a command. Reason is set if it did not start or was ended.
type End struct {
	Code   int
	Reason string
}

// Transfer is a copy into a sandbox.
type Transfer struct {
	Sources         []string
	To, Owner, Mode string
}

// Sandboxes runs the sandboxes of builds.
type Sandboxes interface {
	// Create creates a sandbox for a build on the disk of a layer, or of the origin if that is empty.
	Create(ctx context.Context, b templatestore.Build, origin recipe.Base, layer string) (id string, err error)
	Run(ctx context.Context, id string, c Command, line func(text string)) (End, error)
	Copy(ctx context.Context, id string, t Transfer, files io.Reader) (skipped []string, err error)
	// Save ends all processes of steps and saves the disk.
	Save(ctx context.Context, owner, id, layer string) (size int64, err error)
	// Keep gives the sandbox of a failed build to its owner, and returns its name.
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
	freed   chan struct{} // closed when a build ends
}

// New returns a builder.
func New(cfg Config) *Builder {
	if cfg.Builds == 0 {
		cfg.Builds = 8
	}
	if cfg.Queue == 0 {
		cfg.Queue = 64
	}
	return &Builder{cfg: cfg, steps: map[string]*shared{}, running: map[string]int{}, freed: make(chan struct{})}
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

// run is one build in progress.
type run struct {
	*Builder
	build  *templatestore.Build
	keep   bool
	base   Base
	config recipe.Config
	layer  string // the disk so far; empty: that of the origin
	parent string // its identity
	box    string // sandbox; empty: none
	boxAt  string // the layer on whose disk it is
}

// Build executes the recipe of a build and completes the build. With keep, the sandbox of a failed step is kept.
func (b *Builder) Build(ctx context.Context, build *templatestore.Build, base Base, keep bool) error {
	r := &run{Builder: b, build: build, keep: keep, base: base, config: base.Config, layer: base.Layer, parent: base.ID}
	defer r.drop(ctx)
	if build.Recipe.Login && !base.Based {
		r.config.User, r.config.Workdir = "user", "/home/user"
		user := recipe.Step{Kind: recipe.User, User: "user", Text: "USER user"}
		if err := r.step(ctx, user, "base"); err != nil {
			return err
		}
	}
	for i, s := range build.Recipe.Steps {
		name := strconv.Itoa(i + 1)
		r.log("info", name, "[builder %d/%d] %s", i+1, len(build.Recipe.Steps), s)
		if err := r.step(ctx, s, name); err != nil {
			return err
		}
	}
	build.Layer, build.Origin, build.Config = r.layer, base.Origin, r.config
	return nil
}

func (r *run) log(level, step, format string, args ...any) {
	r.cfg.Store.Append(r.build.Owner, r.build.ID, templatestore.Entry{Level: level, Step: step, Text: fmt.Sprintf(format, args...)})
}

// changesDisk reports whether a step has a layer.
func (r *run) changesDisk(s recipe.Step) bool {
	return s.Kind == recipe.Run || s.Kind == recipe.Copy || s.Kind == recipe.User && r.build.Recipe.Login
}

// step executes a step, or finds its layer.
func (r *run) step(ctx context.Context, s recipe.Step, name string) error {
	began := time.Now()
	if err := context.Cause(ctx); err != nil {
		return err
	}
	r.config = r.config.Apply(s)
	result := templatestore.StepResult{Text: s.String()}
	if r.changesDisk(s) {
		l, cached, err := r.find(ctx, s, name)
		if err != nil {
			return r.fail(ctx, err, name)
		}
		if result.Layer, result.Cached = l.ID, cached; cached {
			r.log("info", name, "CACHED %s", s)
		} else {
			result.Size = l.Size
			r.build.Size += l.Size
		}
		r.layer, r.parent = l.ID, "layer:"+l.ID
	}
	result.Took = time.Since(began)
	r.build.Steps = append(r.build.Steps, result)
	return nil
}

// fail keeps the sandbox of a failed step, if requested.
func (r *run) fail(ctx context.Context, err error, name string) error {
	failed, ok := errors.AsType[*StepError](err)
	if !ok {
		return err
	}
	out := &StepError{name, failed.Message}
	if r.keep && r.box != "" {
		kept, err := r.cfg.Sandboxes.Keep(context.WithoutCancel(ctx), r.box)
		if err != nil {
			r.log("warn", name, "cannot keep the sandbox: %v", err)
			return out
		}
		out.Message += fmt.Sprintf("; inspect it with: cove shell %s", kept)
		r.box = ""
	}
	return out
}

// key identifies the result of a step.
func (r *run) key(s recipe.Step, files string) string {
	h := sha256.New()
	for _, part := range []string{"cove-layer-1", r.build.Owner, r.parent, string(s.Canonical(r.config, r.build.Recipe.Login, files))} {
		fmt.Fprintf(h, "%d:%s", len(part), part)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// find returns the layer of a step. If there is none, the first build that needs it runs the step, and others wait.
func (r *run) find(ctx context.Context, s recipe.Step, name string) (l templatestore.Layer, cached bool, err error) {
	var digest string
	if s.Kind == recipe.Copy {
		f, ok := r.cfg.Store.File(r.build.Owner, s.Files)
		if !ok {
			return l, false, &StepError{name, "its files were not uploaded, or were deleted; upload them again"}
		}
		digest = f.Digest
	}
	key := r.key(s, digest)
	if r.build.Recipe.Force || s.Force {
		l, err := r.execute(ctx, s, name, key, digest)
		return l, false, err
	}
	id := r.build.Owner + "\x00" + key
	for {
		r.mu.Lock()
		if l, ok := r.cfg.Store.FindLayer(r.build.Owner, key); ok {
			r.mu.Unlock()
			return l, true, nil
		}
		other := r.steps[id]
		if other == nil {
			own := &shared{done: make(chan struct{})}
			r.steps[id] = own
			r.mu.Unlock()
			l, own.err = r.execute(ctx, s, name, key, digest)
			r.mu.Lock()
			delete(r.steps, id)
			r.mu.Unlock()
			close(own.done)
			return l, false, own.err
		}
		r.mu.Unlock()
		r.log("info", name, "waiting for another build that runs the same step")
		select {
		case <-other.done:
		case <-ctx.Done():
			return l, false, context.Cause(ctx)
		}
		if failed, ok := errors.AsType[*StepError](other.err); ok {
			return l, false, failed
		}
	}
}

// execute runs a step and saves its layer.
func (r *run) execute(ctx context.Context, s recipe.Step, name, key, digest string) (l templatestore.Layer, err error) {
	if err := r.move(ctx); err != nil {
		return l, err
	}
	switch s.Kind {
	case recipe.Run:
		err = r.command(ctx, s, name)
	case recipe.User:
		err = r.addUser(ctx, s, name)
	case recipe.Copy:
		err = r.copyFiles(ctx, s, name, digest)
	}
	if err != nil {
		return l, err
	}
	l = templatestore.Layer{ID: strings.ToLower(rand.Text()), Key: key}
	if l.Size, err = r.cfg.Sandboxes.Save(ctx, r.build.Owner, r.box, l.ID); err != nil {
		return l, fmt.Errorf("save the disk after step %s: %w", name, err)
	}
	r.boxAt = l.ID
	return l, r.cfg.Store.PutLayer(r.build.Owner, l)
}

// move makes sure that the sandbox is on the disk so far.
func (r *run) move(ctx context.Context) (err error) {
	if r.box != "" && r.boxAt == r.layer {
		return nil
	}
	r.drop(ctx)
	if r.box, err = r.cfg.Sandboxes.Create(ctx, *r.build, r.base.Origin, r.layer); err != nil {
		return fmt.Errorf("create the sandbox of the build: %w", err)
	}
	r.boxAt = r.layer
	return nil
}

func (r *run) drop(ctx context.Context) {
	if r.box != "" {
		r.cfg.Sandboxes.Delete(context.WithoutCancel(ctx), r.box)
	}
	r.box = ""
}

// loginShell starts a command in a login shell, which need not be bash.
const loginShell = `if [ -x /bin/bash ]; then exec /bin/bash -l -c "$0"; else exec /bin/sh -l -c "$0"; fi`

func (r *run) command(ctx context.Context, s recipe.Step, name string) error {
	c := Command{Args: s.Args, Env: r.config.Env, User: r.config.User, Workdir: r.config.Workdir}
	if s.Command != "" {
		c.Args = []string{"/bin/sh", "-c", s.Command}
		if r.build.Recipe.Login {
			c.Args = []string{"/bin/sh", "-c", loginShell, s.Command}
		}
	}
	if s.User != "" {
		c.User = s.User
	}
	if r.build.Recipe.Login {
		c.Owner = r.config.User
	}
	if c.Workdir == "" {
		c.Workdir = "/"
	}
	end, err := r.cfg.Sandboxes.Run(ctx, r.box, c, func(text string) { r.log("info", name, "%s", text) })
	if err != nil {
		return err
	}
	return r.explain(s, name, end)
}

// explain returns the error of a command that has failed, for E2B in the words that its clients compare.
func (r *run) explain(s recipe.Step, name string, end End) error {
	what := s.Command
	if what == "" {
		what = strings.Join(s.Args, " ")
	}
	switch {
	case end.Code == 0 && end.Reason == "":
		return nil
	case r.build.Recipe.Login && strings.HasPrefix(end.Reason, "invalid username"):
		return &StepError{name, fmt.Sprintf("failed to run command '%s': command failed: unauthenticated: %s", what, end.Reason)}
	case r.build.Recipe.Login && end.Reason == "":
		return &StepError{name, fmt.Sprintf("failed to run command '%s': exit status %d", what, end.Code)}
	case end.Reason != "":
		return &StepError{name, fmt.Sprintf("step %s (%.200s): %s", name, s, end.Reason)}
	}
	return &StepError{name, fmt.Sprintf("step %s (%.200s): it failed with exit code %d; see the log above", name, s, end.Code)}
}

// addUserScript creates a user that does not exist. The user "user" is another name of the sandbox's own user, if there
// is one.
const addUserScript = `set -e
if [ "$1" = user ]; then
	[ "$(id -un 1000 2> /dev/null)" != user ] || exit 0
elif id -u "$1" > /dev/null 2>&1; then
	exit 0
fi
first() {
	{ printf '%s\n' "$2"; grep -v '^user:' "$1" || true; } > "$1.new"
	cat "$1.new" > "$1"
	rm "$1.new"
}
if [ "$1" = user ] && line=$(grep -m 1 '^[^:]*:[^:]*:1000:' /etc/passwd); then
	home=$(printf '%s' "$line" | cut -d : -f 6)
	[ -e /home/user ] || ln -s "$home" /home/user
	first /etc/group "user:x:$(printf '%s' "$line" | cut -d : -f 4):"
	first /etc/passwd "user:x:1000:$(printf '%s' "$line" | cut -d : -f 4)::/home/user:/bin/bash"
elif command -v useradd > /dev/null; then
	useradd -m -s /bin/bash "$1"
else
	id=1001
	while grep -q "^[^:]*:[^:]*:$id:" /etc/passwd /etc/group; do id=$((id + 1)); done
	echo "$1:x:$id:" >> /etc/group
	echo "$1:x:$id:$id::/home/$1:/bin/sh" >> /etc/passwd
	mkdir -p "/home/$1"
	chown "$id:$id" "/home/$1"
fi`

func (r *run) addUser(ctx context.Context, s recipe.Step, name string) error {
	user, _, _ := strings.Cut(r.config.User, ":")
	if _, err := strconv.Atoi(user); err == nil {
		return nil
	}
	c := Command{Args: []string{"/bin/sh", "-c", addUserScript, "sh", user}, User: "root", Workdir: "/"}
	end, err := r.cfg.Sandboxes.Run(ctx, r.box, c, func(text string) { r.log("info", name, "%s", text) })
	if err != nil {
		return err
	}
	return r.explain(recipe.Step{Kind: recipe.Run, Command: s.String()}, name, end)
}

func (r *run) copyFiles(ctx context.Context, s recipe.Step, name, digest string) error {
	f, err := r.cfg.Store.OpenFile(r.build.Owner, s.Files, digest)
	if err != nil {
		return err
	}
	defer f.Close()
	owner := s.Owner
	if owner == "" && r.build.Recipe.Login {
		owner = r.config.User
	}
	t := Transfer{Sources: s.Sources, To: r.config.Target(s), Owner: recipe.Expand(owner, r.config.Env), Mode: s.Mode}
	skipped, err := r.cfg.Sandboxes.Copy(ctx, r.box, t, f)
	for _, text := range skipped {
		r.log("warn", name, "not copied: %s", text)
	}
	return err
}
