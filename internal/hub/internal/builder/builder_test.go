package builder

import (
	"context"
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
	mu     sync.Mutex
	boxes  map[string][]string
	layers map[string][]string
	ran    []string
	block  chan struct{} // if not nil, commands wait for it
	began  chan struct{} // receives when a command begins
}

func newMachine() *machine {
	return &machine{boxes: map[string][]string{}, layers: map[string][]string{}, began: make(chan struct{}, 1000)}
}

func (m *machine) Create(_ context.Context, b templatestore.Build, _ recipe.Base, layer string) (string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	id := fmt.Sprint(b.ID, len(m.boxes))
	m.boxes[id] = append([]string{}, m.layers[layer]...)
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
	m.boxes[id] = append(m.boxes[id], command)
	line("output of " + command)
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

func (m *machine) Save(_ context.Context, _, id, layer string) (int64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.layers[layer] = append([]string{}, m.boxes[id]...)
	return 10, nil
}

func (m *machine) Keep(context.Context, string) (string, error) { return "kept", nil }

func (m *machine) Delete(_ context.Context, id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.boxes, id)
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
	err := r.Build(context.Background(), &b, Base{ID: "base"}, true)
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
		if !ok || failed.Step != "2" || !strings.Contains(failed.Message, "exit code 3") || !strings.Contains(failed.Message, "cove shell kept") {
			t.Fatalf("got %v, want the failure of step 2", err)
		}
		r.m.mu.Lock()
		clear(r.m.boxes) // kept
		r.m.mu.Unlock()
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
		if err := r.Build(ctx, &b, Base{ID: "base"}, false); !errors.Is(err, context.Canceled) {
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
