package claim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/internal/hub/internal/task"
	"github.com/cove-sandbox/cove/internal/op"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// oldCluster knows only the first version of the objects.
type oldCluster struct {
	Cluster
	objects map[string][]string // by resource
}

func (c oldCluster) Follow(ctx context.Context, kind, _ string, replace func([]json.RawMessage), _ func(bool, json.RawMessage)) error {
	resource, ok := strings.CutPrefix(kind, "apis/extensions.agents.x-k8s.io/v1alpha1/")
	if !ok {
		return fmt.Errorf("%w: %s", sandbox.ErrNotFound, kind)
	}
	var all []json.RawMessage
	for _, text := range c.objects[resource] {
		all = append(all, json.RawMessage(text))
	}
	replace(all)
	<-ctx.Done()
	return ctx.Err()
}

// TestOlderVersion: objects of v1alpha1 name a template, and a pool in other words.
func TestOlderVersion(t *testing.T) {
	t.Parallel()
	tasks := task.New()
	defer func() { tasks.Cancel(); tasks.Wait() }()
	s := New(Config{Owners: map[string]string{"ns": "ann"}, Tasks: tasks, Record: func(o op.Op) op.Op { return o }, Kick: func() {}, Cluster: oldCluster{objects: map[string][]string{
		templates: {`{"metadata":{"name":"t"},"spec":{"podTemplate":{"spec":{"containers":[{"image":"i"}]}}}}`},
		pools: {`{"metadata":{"name":"p"},"spec":{"replicas":3,"sandboxTemplateRef":{"name":"t"}}}`,
			`{"metadata":{"name":"q"},"spec":{"replicas":1,"sandboxTemplateRef":{"name":"other"}}}`},
		claims: {`{"metadata":{"name":"c"},"spec":{"sandboxTemplateRef":{"name":"t"}}}`},
	}}})
	s.Begin(t.Context())
	o, kind, known := s.get(key{claims, "ns", "c"})
	if !known || o == nil || !strings.HasSuffix(kind, "v1alpha1/sandboxclaims") {
		t.Fatalf("got %+v, %s, %v, want the claim, and all known although there are no Sandboxes", o, kind, known)
	}
	if warm := s.Warm(); len(warm) != 1 || warm[poolName("ns", "p")].Size != 3 {
		t.Errorf("got %v, want the pool whose template exists", warm)
	}
	for policy, want := range map[string]string{"": "p", "default": "p", "none": "", "p": "p"} {
		o.Spec.WarmPool = policy
		if pool, template, problem := s.resolve("ns", o); pool != want || template == nil || problem != "" {
			t.Errorf("warm pool %q: got %q, %v, %q, want %q", policy, pool, template, problem, want)
		}
	}
	o.Spec.WarmPool = "q"
	if _, _, problem := s.resolve("ns", o); !strings.Contains(problem, `of template "other"`) {
		t.Errorf("got %q, want that the pool is of another template", problem)
	}
}

// deaf is a cluster that does not let us in.
type deaf struct{ Cluster }

func (deaf) Follow(context.Context, string, string, func([]json.RawMessage), func(bool, json.RawMessage)) error {
	return errors.New("forbidden")
}

// TestUnknownIsNotGone: as long as the objects cannot be read, no sandbox is taken for one without an object.
func TestUnknownIsNotGone(t *testing.T) {
	t.Parallel()
	tasks := task.New()
	defer func() { tasks.Cancel(); tasks.Wait() }()
	s := New(Config{Owners: map[string]string{"ns": "ann"}, Tasks: tasks, Record: func(o op.Op) op.Op { return o }, Kick: func() {}, Cluster: deaf{}, Log: quiet})
	s.Begin(t.Context())
	k := key{claims, "ns", "c"}
	s.own(k, "uid", "sb-1")
	if again := s.sync(t.Context(), k); !again.IsZero() || s.ownedBy(k)["uid"] != "sb-1" { // a delete would panic: there is no provider
		t.Errorf("got %v, %v, want nothing done", again, s.ownedBy(k))
	}
	s.own(key{claims, "elsewhere", "c"}, "uid", "sb-2")
	if got := s.ownedBy(key{claims, "elsewhere", "c"}); len(got) != 0 {
		t.Errorf("got %v, want no sandbox of a namespace that is not served", got)
	}
}
