package agentsandbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/hub/environment"
	"github.com/cove-sandbox/cove/internal/hub/internal/history"
	"github.com/cove-sandbox/cove/internal/hub/internal/task"
	"github.com/cove-sandbox/cove/internal/hub/lifecycle"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// oldCluster serves only the first version of the objects.
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

// TestOlderVersion: objects of v1alpha1 refer to a template, and use other field names for a pool.
func TestOlderVersion(t *testing.T) {
	t.Parallel()
	tasks := task.New()
	defer func() { tasks.Cancel(); tasks.Wait() }()
	s := New(Config{Owners: map[string]string{"ns": "ann"}, Tasks: tasks, Record: func(o op.Op) op.Op { return o },
		Notify: func() {}, Cluster: oldCluster{objects: map[string][]string{
			templates: {`{"metadata":{"name":"t"},"spec":{"podTemplate":{"spec":{"containers":[{"image":"i"}]}}}}`},
			pools: {`{"metadata":{"name":"p"},"spec":{"replicas":3,"sandboxTemplateRef":{"name":"t"}}}`,
				`{"metadata":{"name":"q"},"spec":{"replicas":1,"sandboxTemplateRef":{"name":"other"}}}`},
			claims: {`{"metadata":{"name":"c"},"spec":{"sandboxTemplateRef":{"name":"t"}}}`},
		}}})
	s.Begin(t.Context())
	o, kind, known := s.get(key{claims, "ns", "c"})
	if !known || o == nil || !strings.HasSuffix(kind, "v1alpha1/sandboxclaims") {
		t.Fatalf("got %+v, %s, %v, want the claim, and all objects known although the cluster has no Sandboxes", o, kind, known)
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
	if _, _, problem := s.resolve("ns", o); !strings.Contains(problem, `has template "other"`) {
		t.Errorf("got %q, want an error that the pool has another template", problem)
	}
}

// rejecting is a cluster that rejects our credentials.
type rejecting struct{ Cluster }

func (rejecting) Follow(context.Context, string, string, func([]json.RawMessage), func(bool, json.RawMessage)) error {
	return errors.New("forbidden")
}

// TestUnknownIsNotGone: while the objects cannot be read, no sandbox is treated as if its object were deleted.
func TestUnknownIsNotGone(t *testing.T) {
	t.Parallel()
	tasks := task.New()
	defer func() { tasks.Cancel(); tasks.Wait() }()
	s := New(Config{Owners: map[string]string{"ns": "ann"}, Tasks: tasks, Record: func(o op.Op) op.Op { return o },
		Notify: func() {}, Cluster: rejecting{}, Log: quiet})
	s.Begin(t.Context())
	k := key{claims, "ns", "c"}
	s.own(k, "uid", "sb-1")
	if again := s.sync(t.Context(), k); !again.IsZero() || s.ownedBy(k)["uid"] != "sb-1" { // without a provider, a delete would panic
		t.Errorf("got %v, %v, want no change", again, s.ownedBy(k))
	}
	s.own(key{claims, "elsewhere", "c"}, "uid", "sb-2")
	if got := s.ownedBy(key{claims, "elsewhere", "c"}); len(got) != 0 {
		t.Errorf("got %v, want no sandbox of a namespace that is not served", got)
	}
}

// crowded rejects sandboxes until capacity is available.
type crowded struct {
	Sandboxes
	room atomic.Bool
	asks atomic.Int64
	ask  atomic.Pointer[func()] // called for each rejection
}

func (c *crowded) MakeFrom(_ context.Context, _ environment.Environment, in lifecycle.CreateIn,
	_ func(*sandbox.Spec)) (sandbox.Sandbox, error) {
	c.asks.Add(1)
	if !c.room.Load() {
		if ask := c.ask.Load(); ask != nil {
			(*ask)()
		}
		return sandbox.Sandbox{}, op.Errorf(op.Exhausted, "at most 3 sandboxes")
	}
	return sandbox.Sandbox{ID: "sb-1", Spec: sandbox.Spec{Name: in.Name}, State: sandbox.Running}, nil
}

// patient is a cluster and a provider that accept every request.
type patient struct {
	oldCluster
	sandbox.Provider
}

func (patient) SetStatus(context.Context, string, string, string, string, any) error { return nil }
func (patient) List(context.Context, sandbox.Filter) ([]sandbox.Sandbox, error)      { return nil, nil }
func (patient) Get(_ context.Context, id string) (sandbox.Sandbox, error) {
	return sandbox.Sandbox{ID: id, State: sandbox.Running}, nil
}

// TestRoomIsUsedSoon: when a sandbox is deleted, a claim that waits for capacity is retried at once, no matter how long
// it has waited.
// Frequent deletions do not cause constant retries.
func TestRoomIsUsedSoon(t *testing.T) {
	t.Parallel()
	for name, during := range map[string]bool{"one goes": false, "one goes with each refusal": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				events, tasks, c := history.New(), task.New(), &crowded{}
				free := func(owner string) {
					events.Add(string(sandbox.Deleted), time.Now(), sandbox.Sandbox{ID: "sb-0", Spec: sandbox.Spec{Owner: owner}}, "")
				}
				cluster := patient{oldCluster: oldCluster{objects: map[string][]string{
					templates: {`{"metadata":{"name":"t"},"spec":{"podTemplate":{"spec":{"containers":[{"image":"i"}]}}}}`},
					claims:    {`{"metadata":{"name":"c","uid":"u"},"spec":{"sandboxTemplateRef":{"name":"t"}}}`},
				}}}
				s := New(Config{Owners: map[string]string{"ns": "ann"}, Tasks: tasks,
					Record: func(o op.Op) op.Op { return o }, Notify: func() {}, History: events, Sandboxes: c,
					Cluster: cluster, Provider: cluster, Log: quiet})
				s.Begin(t.Context())
				s.Serve(t.Context())
				time.Sleep(9 * time.Minute) // a minute before its own retry
				synctest.Wait()
				if n := c.asks.Load(); n < 5 || n > 20 {
					t.Fatalf("tried %d times in 9 min, want increasing retry delays", n)
				}
				before := c.asks.Load()
				free("bob")
				time.Sleep(minRetry)
				synctest.Wait()
				if n := c.asks.Load() - before; n > 0 {
					t.Errorf("tried %d times after the deletion of another owner's sandbox", n)
				}
				if during {
					c.ask.Store(new(func() { free("ann"); time.Sleep(time.Millisecond) })) // the deletion is observed
					free("ann")
					time.Sleep(time.Minute)
					if n, limit := c.asks.Load()-before, int64(time.Minute/minRetry); n < limit-2 || n > limit+1 {
						t.Errorf("tried %d times in a minute, want about %d", n, limit)
					}
				}
				c.room.Store(true)
				free("ann")
				time.Sleep(minRetry)
				synctest.Wait()
				if id := s.ownedBy(key{claims, "ns", "c"})["u"]; id != "sb-1" {
					t.Errorf("got sandbox %q, want it created", id)
				}
				tasks.Cancel()
				tasks.Wait()
			})
		})
	}
}
