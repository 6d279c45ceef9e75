package agentsandbox

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/hub/internal/task"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// filled is a cluster that only lists the objects in its namespaces.
type filled struct {
	Cluster
	objects map[string]func(yield func(string)) // by resource
}

func (c filled) Follow(ctx context.Context, kind, _ string, replace func([]json.RawMessage), change func(bool, json.RawMessage)) error {
	resource, ok := strings.CutPrefix(kind, "apis/extensions.agents.x-k8s.io/v1beta1/")
	if !ok {
		return fmt.Errorf("%w: %s", sandbox.ErrNotFound, kind)
	}
	replace(nil)
	if each := c.objects[resource]; each != nil {
		each(func(text string) { change(false, json.RawMessage(text)) })
	}
	<-ctx.Done()
	return ctx.Err()
}

func serveFilled(t *testing.T, c filled, limit func(string, sandbox.Spec) int) *Service {
	t.Helper()
	tasks := task.New()
	t.Cleanup(func() { tasks.Cancel(); tasks.Wait() })
	s := New(Config{Owners: map[string]string{"a": "ann", "b": "bob"}, Tasks: tasks,
		Record: func(o op.Op) op.Op { return o }, Notify: func() {}, Cluster: c, MaxSandboxes: limit, Log: quiet})
	s.Begin(t.Context())
	return s
}

// TestPoolsWithinLimits: pools cannot exceed the limits of the user that owns the namespace.
func TestPoolsWithinLimits(t *testing.T) {
	t.Parallel()
	list := func(texts ...string) func(func(string)) {
		return func(yield func(string)) {
			for _, text := range texts {
				yield(text)
			}
		}
	}
	c := filled{objects: map[string]func(func(string)){
		templates: list(`{"metadata":{"name":"t"},"spec":{"podTemplate":{"spec":{"containers":[{"image":"i"}]}}}}`),
		pools: list(`{"metadata":{"name":"p"},"spec":{"replicas":2,"sandboxTemplateRef":{"name":"t"}}}`,
			`{"metadata":{"name":"q"},"spec":{"replicas":1000,"sandboxTemplateRef":{"name":"t"}}}`,
			`{"metadata":{"name":"r"},"spec":{"replicas":9223372036854775807,"sandboxTemplateRef":{"name":"t"}}}`),
	}}
	for _, limit := range []struct{ ann, bob, want int }{{3, 3, 6}, {0, 5, 5}, {-1, 1, 1}} {
		s := serveFilled(t, c, func(owner string, _ sandbox.Spec) int {
			return map[string]int{"ann": limit.ann, "bob": limit.bob}[owner]
		})
		sum := 0
		eventually(t, func() bool {
			sum = 0
			for _, w := range s.Warm() {
				sum += w.Size
			}
			return sum == limit.want
		}, func() string { return fmt.Sprintf("got %d warm sandboxes, want %d", sum, limit.want) })
	}
}

// TestLargeObjects: many objects of the maximum size use little memory, and their status says why they are rejected.
func TestLargeObjects(t *testing.T) {
	t.Parallel()
	const count, size = 60, 1 << 20
	large := strings.Repeat("x", size)
	c := filled{objects: map[string]func(func(string)){
		claims: func(yield func(string)) {
			for i := range count {
				yield(fmt.Sprintf(`{"metadata":{"name":"c%d","uid":"u%[1]d"},"spec":{"env":[{"name":"A","value":"%[2]s"}]}}`, i, large))
			}
		},
		templates: func(yield func(string)) {
			yield(`{"metadata":{"name":"t"},"spec":{"podTemplate":{"spec":{"containers":[{"image":"i",` +
				`"env":[{"name":"A","value":"` + large + `"}]}]}}}}`)
		},
	}}
	s := serveFilled(t, c, nil)
	last := key{claims, "a", fmt.Sprintf("c%d", count-1)}
	eventually(t, func() bool { o, _, _ := s.get(last); return o != nil }, func() string { return "the last claim is not known" })
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	if m.HeapAlloc > count*size/4 {
		t.Errorf("got %d MiB of memory for %d MiB of objects, want less", m.HeapAlloc>>20, count*size>>20)
	}
	o, _, _ := s.get(last)
	if _, reason, message := s.plan(last, o); reason != "InvalidTemplate" ||
		!strings.Contains(message, "use at most") || o.Metadata.UID == "" {
		t.Errorf("got %q, %q for %+v, want an error that it is too large", reason, message, o.Metadata)
	}
	small := &object{Spec: spec{TemplateRef: reference{"t"}, WarmPool: "none"}}
	eventually(t, func() bool {
		_, reason, _ := s.plan(key{claims, "a", "small"}, small)
		return reason == "InvalidTemplate"
	},
		func() string { return "a claim of a large template is not refused" })
}

func eventually(t *testing.T, ok func() bool, why func() string) {
	t.Helper()
	testenv.Poll(t, "the objects are known", ok)
	if !ok() {
		t.Error(why())
	}
}
