package builder

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/hub/internal/templatestore"
	"github.com/cove-sandbox/cove/internal/recipe"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// machine records what builds do in sandboxes. The disk of a sandbox is the list of commands that ran on it.
type machine struct {
	mu       sync.Mutex
	boxes    map[string][]string
	layers   map[string][]string
	ran      []string
	n        int
	caches   map[string][]Cache // of sandboxes
	mounted  map[string]bool
	saved    []Saving
	commands []Command
	block    chan struct{} // if not nil, commands wait for it
	began    chan struct{} // receives when a command begins
}

func newMachine() *machine {
	return &machine{boxes: map[string][]string{}, layers: map[string][]string{}, caches: map[string][]Cache{},
		mounted: map[string]bool{}, began: make(chan struct{}, 1000)}
}

func (m *machine) Resolve(_ context.Context, _ string, b recipe.Base, _ bool) (Base, error) {
	if b.Image == "missing" {
		return Base{}, errors.New("no such image")
	}
	return Base{ID: "base" + b.Image, Origin: b}, nil
}

func (m *machine) Create(_ context.Context, b templatestore.Build, d Disk) (string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range d.Caches {
		if m.mounted[c.Volume] {
			return "", fmt.Errorf("%s is mounted twice", c.Volume)
		}
		m.mounted[c.Volume] = true
	}
	m.n++
	id := fmt.Sprint(b.ID, "-", m.n)
	m.boxes[id] = append([]string{}, m.layers[d.Layer]...)
	m.caches[id] = d.Caches
	return id, nil
}

func (m *machine) Run(ctx context.Context, id string, c Command, line func(string)) (End, error) {
	m.began <- struct{}{}
	if m.block != nil {
		select {
		case <-m.block:
		case <-ctx.Done():
			return End{}, context.Cause(ctx)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	command := c.Args[len(c.Args)-1]
	m.ran = append(m.ran, command)
	m.commands = append(m.commands, c)
	m.boxes[id] = append(m.boxes[id], command)
	line("output of " + command)
	for _, secret := range c.Secrets {
		line("the secret is " + secret.Value)
	}
	if command == "fail" {
		return End{Code: 3}, nil
	}
	return End{}, nil
}

func (m *machine) Copy(_ context.Context, id string, t Transfer, files io.Reader) ([]string, error) {
	b, err := io.ReadAll(files)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.boxes[id] = append(m.boxes[id], fmt.Sprint("copy ", t.To, " ", len(b)))
	m.ran = append(m.ran, "copy")
	return nil, err
}

func (m *machine) Pack(_ context.Context, id string, _ []string) (io.ReadCloser, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return io.NopCloser(strings.NewReader(strings.Join(m.boxes[id], " "))), nil
}

func (m *machine) Save(_ context.Context, id string, s Saving) (int64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.saved = append(m.saved, s)
	m.layers[s.Layer] = append([]string{}, m.boxes[id]...)
	return 10, nil
}

func (m *machine) Keep(context.Context, string) (string, error) { return "kept", nil }

func (m *machine) Delete(_ context.Context, id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.boxes, id)
	for _, c := range m.caches[id] {
		delete(m.mounted, c.Volume)
	}
}

type rig struct {
	*testing.T
	*Builder
	m     *machine
	store *templatestore.Store
	n     int
}

func newRig(t *testing.T) *rig {
	store, err := templatestore.Open(t.TempDir(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	m := newMachine()
	return &rig{T: t, m: m, store: store, Builder: New(Config{Store: store, Sandboxes: m})}
}

func steps(commands ...string) (list []recipe.Step) {
	for _, c := range commands {
		if name, value, ok := strings.Cut(c, "="); ok {
			list = append(list, recipe.Step{Kind: recipe.Env, Pairs: []string{name, value}})
			continue
		}
		list = append(list, recipe.Step{Kind: recipe.Run, Command: c})
	}
	return list
}

func (r *rig) build(owner, id string, rec recipe.Recipe) (templatestore.Build, error) {
	b := templatestore.Build{ID: id, Owner: owner, Template: "t", Recipe: rec}
	err := r.Build(context.Background(), &b, Options{Keep: true, Secrets: map[string]string{"key": "hunter22\nsecond line"}})
	return b, err
}

func (r *rig) want(what string, commands ...string) {
	r.Helper()
	r.m.mu.Lock()
	defer r.m.mu.Unlock()
	if got := strings.Join(r.m.ran, " "); got != strings.Join(commands, " ") {
		r.Errorf("%s: ran %q, want %q", what, got, commands)
	}
	if len(r.m.boxes) != 0 {
		r.Errorf("%s: %d sandboxes are left", what, len(r.m.boxes))
	}
	r.m.ran = nil
}

// TestCache: only changed steps and those after them run, and no owner uses the layers of another.
func TestCache(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	must := func(owner string, rec recipe.Recipe) templatestore.Build {
		t.Helper()
		r.n++
		b, err := r.build(owner, fmt.Sprint("b", r.n), rec)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	first := must("ann", recipe.Recipe{Steps: steps("one", "A=x", "two")})
	r.want("first", "one", "two")
	again := must("ann", recipe.Recipe{Steps: steps("one", "A=x", "two")})
	r.want("again")
	if again.Size != first.Size || first.Size < 20 {
		t.Errorf("got sizes %d and %d, want that of all layers, cached or not", first.Size, again.Size)
	}
	if again.Layer != first.Layer || !again.Steps[2].Cached || again.Config.Env["A"] != "x" {
		t.Errorf("got %+v, want the layer %s", again, first.Layer)
	}
	b := must("ann", recipe.Recipe{Steps: steps("one", "A=y", "two")})
	r.want("another variable", "two")
	if got := strings.Join(r.m.layers[b.Layer], " "); got != "one two" {
		t.Errorf("the disk has %q, want one two", got)
	}
	must("ann", recipe.Recipe{Steps: steps("three", "two")})
	r.want("another first step", "three", "two")
	must("bob", recipe.Recipe{Steps: steps("one", "A=x", "two")})
	r.want("another owner", "one", "two")
	must("ann", recipe.Recipe{Steps: steps("one", "A=x", "two"), Force: true})
	r.want("force", "one", "two")
	forced := steps("one", "A=x", "two")
	forced[0].Force = true
	must("ann", recipe.Recipe{Steps: forced})
	r.want("force of a step", "one", "two")
}

// TestFailure: a failed step ends the build, names itself and keeps a copy of its sandbox; its layer is not stored.
func TestFailure(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for range 2 {
		_, err := r.build("ann", "b", recipe.Recipe{Steps: steps("one", "fail", "two")})
		failed, ok := errors.AsType[*StepError](err)
		if !ok || failed.Step != "2" || !strings.Contains(failed.Message, "exit code 3") || !strings.Contains(failed.Message,
			"cove shell kept") {
			t.Fatalf("got %v, want the failure of step 2", err)
		}
	}
	r.want("twice", "one", "fail", "fail")
}

// TestSharedSteps: concurrent builds run each step once. If the build that runs it is canceled, another one runs it.
func TestSharedSteps(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.m.block = make(chan struct{})
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	wg.Go(func() {
		b := templatestore.Build{ID: "first", Owner: "ann", Recipe: recipe.Recipe{Steps: steps("one")}}
		if err := r.Build(ctx, &b, Options{}); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want a cancellation", err)
		}
	})
	<-r.m.began
	for i := range 50 {
		wg.Go(func() {
			if _, err := r.build("ann", fmt.Sprint("b", i), recipe.Recipe{Steps: steps("one", "two")}); err != nil {
				t.Error(err)
			}
		})
	}
	cancel()
	<-r.m.began // another build has taken over
	close(r.m.block)
	wg.Wait()
	r.want("all", "one", "two")
}

// TestStages: stages are built in order and only once, copies between them depend on the disk of their source, and no
// sandbox stays.
func TestStages(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	rec := func(first string) recipe.Recipe {
		return recipe.Recipe{Stages: []recipe.Stage{
			{Name: "a", Base: recipe.Base{Image: "x"}, Steps: steps("A=1", first)},
			{Name: "b", Base: recipe.Base{Stage: "a"}, Steps: steps("two")},
		}, Base: recipe.Base{Image: "y"}, Steps: append(steps("three"), recipe.Step{Kind: recipe.Copy, Sources: []string{"x"}, To: "/y",
			From: "b"},
			recipe.Step{Kind: recipe.Copy, Sources: []string{"z"}, To: "/z", From: "a"}, recipe.Step{Kind: recipe.Run, Command: "four"})}
	}
	b, err := r.build("ann", "b1", rec("one"))
	if err != nil {
		t.Fatal(err)
	}
	r.want("first", "one", "two", "three", "copy", "copy", "four")
	if got := strings.Join(r.m.layers[b.Layer], ","); got != "three,copy /y 7,copy /z 3,four" || len(b.Config.Env) != 0 ||
		b.Origin.Image != "y" {
		t.Errorf("got %s, %+v, %+v", got, b.Config, b.Origin)
	}
	again, err := r.build("ann", "b2", rec("one"))
	if err != nil || again.Layer != b.Layer {
		t.Errorf("got %s, %v, want the layer %s", again.Layer, err, b.Layer)
	}
	r.want("again")
	if _, err := r.build("ann", "b3", rec("other")); err != nil {
		t.Fatal(err)
	}
	r.want("another first stage", "other", "two", "copy", "copy", "four")
	var base *BaseError
	if _, err := r.build("ann", "b4", recipe.Recipe{Stages: []recipe.Stage{{Name: "a",
		Base: recipe.Base{Image: "missing"}}}}); !errors.As(err, &base) {
		t.Errorf("got %v, want an error of the base", err)
	}
}

func mounting(command string, mounts ...recipe.Mount) recipe.Step {
	return recipe.Step{Kind: recipe.Run, Command: command, Mounts: mounts}
}

// TestSecrets: the value of a secret is in no log, record, error or key; a required secret must be given.
func TestSecrets(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	secret := recipe.Mount{Kind: recipe.Secret, ID: "key", Required: true}
	b, err := r.build("ann", "b1", recipe.Recipe{Steps: []recipe.Step{mounting("one", secret)}})
	if err != nil {
		t.Fatal(err)
	}
	if got := r.m.commands[0].Secrets; len(got) != 1 || got[0].Value != "hunter22\nsecond line" {
		t.Fatalf("the step got %+v", got)
	}
	if s := r.m.saved[0]; s.Secrets["key"] == "" || s.Since.IsZero() {
		t.Errorf("the disk is saved without a search for the secret: %+v", s)
	}
	entries, _ := r.store.Entries("ann", "b1", 0, 100)
	text, _ := json.Marshal([]any{entries, b})
	if s := string(text); strings.Contains(s, "hunter22") || strings.Contains(s, "second line") || !strings.Contains(s,
		"the secret is ***") {
		t.Errorf("the log or record contains the secret: %s", s)
	}
	mask := newMask(map[string]string{"a": "hunter22"})
	if got := mask.Replace("x aHVudGVyMjI= y"); got != "x *** y" {
		t.Errorf("got %q for base64", got)
	}
	other := templatestore.Build{ID: "b2", Owner: "ann", Recipe: recipe.Recipe{Steps: []recipe.Step{mounting("one", secret)}}}
	if err := r.Build(t.Context(), &other, Options{Secrets: map[string]string{"key": "rotated"}}); err != nil || !other.Steps[0].Cached {
		t.Errorf("got %+v, %v: the key depends on the value", other.Steps, err)
	}
	other.Recipe.Steps[0].Command = "two"
	if err := r.Build(t.Context(), &other, Options{}); err == nil || !strings.Contains(err.Error(), "key is required") {
		t.Errorf("got %v without the secret", err)
	}
}

// TestCaches: builds that use the same cache run one after the other, in any order of the caches.
func TestCaches(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	x, y := recipe.Mount{Kind: recipe.Cache, Target: "/x"}, recipe.Mount{Kind: recipe.Cache, Target: "/y"}
	var wg sync.WaitGroup
	for i := range 20 {
		mounts := []recipe.Mount{x, y}
		if i%2 == 1 {
			mounts = []recipe.Mount{y, x}
		}
		wg.Go(func() {
			list := []recipe.Step{mounting(fmt.Sprint("first", i), mounts...), mounting("same", x), mounting(fmt.Sprint("last", i))}
			if _, err := r.build("ann", fmt.Sprint("b", i), recipe.Recipe{Steps: list}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if len(r.m.boxes) != 0 || len(r.m.mounted) != 0 || len(r.caches) != 0 {
		t.Errorf("left behind: %v, %v, %v", r.m.boxes, r.m.mounted, r.caches)
	}
	for _, c := range r.m.commands {
		if strings.HasPrefix(c.Args[2], "first") && len(c.Caches) != 2 {
			t.Errorf("%s has the caches %+v", c.Args[2], c.Caches)
		}
	}
}

// TestVars: build arguments are variables of a step, and variables of the base take precedence.
func TestVars(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := append(steps("A=env"), recipe.Step{Kind: recipe.Run, Command: "one", Vars: map[string]string{"A": "arg", "B": "arg"}})
	b, err := r.build("ann", "b1", recipe.Recipe{Steps: s})
	if got := r.m.commands[0].Env; err != nil || got["A"] != "env" || got["B"] != "arg" || b.Config.Env["B"] != "" {
		t.Errorf("got %v, %v, %v", got, b.Config.Env, err)
	}
	s[1].Vars = map[string]string{"A": "other", "B": "arg"}
	if b, err := r.build("ann", "b2", recipe.Recipe{Steps: s}); err != nil || !b.Steps[1].Cached {
		t.Errorf("got %+v, %v: a hidden argument changes the key", b.Steps, err)
	}
	// A working directory that no step has created is created at the end.
	b, err = r.build("ann", "b3", recipe.Recipe{Steps: append(s, recipe.Step{Kind: recipe.Workdir, Path: "/new"})})
	last := r.m.commands[len(r.m.commands)-1]
	if err != nil || last.Workdir != "/new" || len(b.Steps) != 4 {
		t.Errorf("got %+v, %+v, %v, want a step that creates /new", last, b.Steps, err)
	}
}

// TestEnter: the number of builds is bounded, for each owner and in total.
func TestEnter(t *testing.T) {
	t.Parallel()
	b := New(Config{Builds: 4, Queue: 1})
	var leave []func()
	for _, owner := range []string{"ann", "ann", "bob"} {
		l, err := b.Enter(t.Context(), owner)
		if err != nil {
			t.Fatal(err)
		}
		leave = append(leave, l)
	}
	entered := make(chan error)
	go func() {
		_, err := b.Enter(t.Context(), "ann") // a third build of ann waits
		entered <- err
	}()
	testenv.Poll(t, "the build waits", func() bool { b.mu.Lock(); defer b.mu.Unlock(); return b.waiting == 1 })
	if _, err := b.Enter(t.Context(), "bob"); !errors.Is(err, ErrBusy) {
		t.Errorf("got %v, want %v", err, ErrBusy)
	}
	leave[0]()
	if err := <-entered; err != nil {
		t.Error(err)
	}
}
