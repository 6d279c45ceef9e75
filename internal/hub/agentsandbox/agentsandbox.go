// Package agentsandbox is a controller for the objects of kubernetes-sigs/agent-sandbox in a cluster. A
// SandboxClaim or Sandbox becomes a sandbox of the hub, a SandboxTemplate its environment, and a
// SandboxWarmPool a warm pool.
//
// It owns the status of the objects, and the sandboxes whose annotation names an object. The owner of
// these sandboxes is configured for each namespace; no object can name another owner. All state is in
// the cluster or the provider. Unsupported fields are reported in the conditions of the object.
package agentsandbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/hub/environment"
	"github.com/cove-sandbox/cove/internal/hub/internal/history"
	"github.com/cove-sandbox/cove/internal/hub/internal/task"
	"github.com/cove-sandbox/cove/internal/hub/lifecycle"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// Cluster is the cluster with the objects. A kind is the path of its API without the namespace.
type Cluster interface {
	// Follow calls replace with all objects, then change with each change, until ctx ends.
	// It returns ErrNotFound if the cluster does not know the kind.
	Follow(ctx context.Context, kind, namespace string, replace func([]json.RawMessage),
		change func(deleted bool, object json.RawMessage)) error
	// SetStatus and Remove return ErrNotFound for an object with another UID, and do not change it.
	SetStatus(ctx context.Context, kind, namespace, name, uid string, status any) error
	Remove(ctx context.Context, kind, namespace, name, uid string) error
}

// Sandboxes creates and changes sandboxes.
type Sandboxes interface {
	MakeFrom(ctx context.Context, env environment.Environment, in lifecycle.CreateIn, change func(*sandbox.Spec)) (sandbox.Sandbox, error)
	Delete(ctx context.Context, in lifecycle.NameIn) (string, error)
	Stop(ctx context.Context, in lifecycle.NameIn) (lifecycle.Object, error)
	Start(ctx context.Context, in lifecycle.NameIn) (lifecycle.Object, error)
}

// Config of a Service.
type Config struct {
	Cluster Cluster
	// Owners maps each served namespace to the owner of its sandboxes.
	Owners    map[string]string
	Sandboxes Sandboxes
	Provider  sandbox.Provider
	History   *history.Log
	Tasks     *task.Group
	// Record wraps an operation so that the audit log records it.
	Record func(op.Op) op.Op
	// Ready counts the warm sandboxes by environment. Notify reports that the wanted pools changed.
	Ready  func() map[string]int
	Notify func()
	// MaxSandboxes returns how many sandboxes of a spec the limits of an owner allow; nil: unlimited.
	MaxSandboxes func(owner string, spec sandbox.Spec) int
	Defaults     environment.Defaults
	Log          *slog.Logger
}

// CreateOp is the name of the operation that creates a sandbox, in the audit log.
const CreateOp = "claim_create"

// Service is the controller of the objects.
type Service struct {
	Config
	queue queue
	ops   map[string]op.Op // recorded operations that change sandboxes

	mu     sync.Mutex
	spaces map[string]*space
	owned  map[key]map[string]string // ID of the sandbox, by object and UID
	wants  map[string]environment.Warm
}

// space is the known state of a namespace.
type space struct {
	kinds   map[string]string // path of each resource; empty: unknown to the cluster
	objects map[string]map[string]*object
	tries   map[key]attempts
}

// attempts are the failed creates of an object.
type attempts struct {
	count int
	last  time.Time
	full  bool // because a quota was exceeded
}

// complete reports whether the objects of all resources are known.
func (s *space) complete() bool { return len(s.kinds) == len(resources) }

// New returns a service. It starts nothing.
func New(cfg Config) *Service {
	s := &Service{Config: cfg, spaces: map[string]*space{}, owned: map[key]map[string]string{}, queue: queue{changed: make(chan struct{}, 1)}}
	for namespace := range cfg.Owners {
		s.spaces[namespace] = &space{kinds: map[string]string{}, objects: map[string]map[string]*object{}, tries: map[key]attempts{}}
	}
	s.ops = s.recorded()
	return s
}

// firstSync is the maximum time that Begin waits for the cluster.
const firstSync = 10 * time.Second

// Begin starts to follow the objects. It returns when they are known, or after a timeout: an earlier start
// of the warm pool would delete members of pools that are not known yet.
func (s *Service) Begin(ctx context.Context) {
	var synced sync.WaitGroup
	for namespace := range s.Owners {
		for _, resource := range resources {
			synced.Add(1)
			once := sync.OnceFunc(synced.Done)
			if !s.Tasks.Go(func(ctx context.Context) { defer once(); s.follow(ctx, namespace, resource, once) }) {
				once()
			}
		}
	}
	all := make(chan struct{})
	s.Tasks.Go(func(context.Context) { synced.Wait(); close(all) })
	select {
	case <-all:
	case <-ctx.Done():
	case <-time.After(firstSync):
	}
}

// Serve finds the sandboxes that exist for objects, and starts the workers.
func (s *Service) Serve(ctx context.Context) {
	seq := s.History.Last()
	if err := s.index(ctx); err != nil {
		s.Log.Error("cannot serve objects of agent-sandbox", "error", err)
		return
	}
	s.Tasks.Go(func(ctx context.Context) { s.queue.run(ctx, s.Tasks, s.sync) })
	s.Tasks.Go(func(ctx context.Context) { s.followSandboxes(ctx, seq) })
}

// index finds the sandboxes of objects in the served namespaces.
func (s *Service) index(ctx context.Context) error {
	list, err := s.Provider.List(ctx, sandbox.Filter{})
	if err != nil {
		return err
	}
	for _, sb := range list {
		if k, uid, ok := markOf(sb); ok {
			s.own(k, uid, sb.ID)
			s.queue.add(k, time.Time{})
		}
	}
	return nil
}

// own records the sandbox of an object.
func (s *Service) own(k key, uid, id string) {
	if _, ours := s.Owners[k.namespace]; !ours {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.owned[k] == nil {
		s.owned[k] = map[string]string{}
	}
	s.owned[k][uid] = id
}

func (s *Service) disown(k key, uid string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if delete(s.owned[k], uid); len(s.owned[k]) == 0 {
		delete(s.owned, k)
	}
}

// ownedBy returns the sandboxes of an object and of deleted objects with the same name, by UID.
func (s *Service) ownedBy(k key) map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.owned[k])
}

// followSandboxes queues an object when its sandbox changes.
func (s *Service) followSandboxes(ctx context.Context, seq int64) {
	for {
		next := s.History.After(seq)
		if next.Lost {
			seq = next.Last
			if err := s.index(ctx); err != nil && ctx.Err() == nil {
				s.Log.Error("cannot list sandboxes of objects", "error", err)
			}
			s.syncAll(func(key, *object) bool { return true })
		}
		for _, e := range next.Events {
			seq = e.Seq
			if k, _, ok := markOf(e.Sandbox); ok {
				s.queue.add(k, time.Time{})
			}
			if e.Kind == string(sandbox.Deleted) {
				s.retryFull(e.Sandbox.Spec.Owner)
			}
		}
		if next.Closed {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-next.Changed:
		}
	}
}

// retryFull retries creates that exceeded a quota, because a sandbox of the owner was deleted.
func (s *Service) retryFull(owner string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for namespace, sp := range s.spaces {
		for k, t := range sp.tries {
			if t.full && s.Owners[namespace] == owner {
				s.queue.add(k, t.last.Add(minRetry)) // a failed create also ends with a deletion
			}
		}
	}
}

// followRetry is the pause after a cluster did not know the kinds or denied access to them.
const followRetry = 30 * time.Second

// follow keeps the objects of a resource up to date until ctx ends. It calls synced after each attempt.
func (s *Service) follow(ctx context.Context, namespace, resource string, synced func()) {
	reported := ""
	for ctx.Err() == nil {
		var err error
		for _, version := range versions {
			kind := kindOf(resource, version)
			err = s.Cluster.Follow(ctx, kind, namespace, func(all []json.RawMessage) {
				s.replace(namespace, resource, kind, all)
				synced()
			}, func(deleted bool, raw json.RawMessage) {
				if o := s.parse(namespace, resource, raw); o != nil {
					s.change(key{resource, namespace, o.Metadata.Name}, o, deleted)
				}
			})
			if !errors.Is(err, sandbox.ErrNotFound) {
				break
			}
		}
		switch {
		case ctx.Err() != nil || errors.Is(err, sandbox.ErrClosed) || errors.Is(err, sandbox.ErrInUse):
			return
		case errors.Is(err, sandbox.ErrNotFound): // the cluster has no such objects
			s.replace(namespace, resource, "", nil)
		case err != nil && err.Error() != reported:
			reported = err.Error()
			s.Log.Warn("cannot watch objects of agent-sandbox; grant the role of deploy/kubernetes/claims.yaml",
				"resource", resource, "namespace", namespace, "error", err)
		}
		synced()
		select {
		case <-ctx.Done():
		case <-time.After(followRetry):
		}
	}
}

// maxObject is the maximum size of an object, so that one namespace cannot exhaust the memory of the hub.
// Command, arguments and variables of a sandbox have at most 96 KiB.
const maxObject = 192 << 10

// parse parses an object; nil if it is invalid, which the API server should prevent. If the object is too
// large, only its name is kept.
func (s *Service) parse(namespace, resource string, raw json.RawMessage) *object {
	var o object
	if len(raw) > maxObject {
		raw = []byte(fmt.Sprintf(`{"metadata":%s,"size":%d}`, metadataOf(raw), len(raw)))
	}
	if err := json.Unmarshal(raw, &o); err != nil {
		s.Log.Warn("cannot parse object", "resource", resource, "namespace", namespace, "error", err)
		return nil
	}
	return &o
}

// replace sets all objects of a resource.
func (s *Service) replace(namespace, resource, kind string, all []json.RawMessage) {
	next := map[string]*object{}
	for _, raw := range all {
		if o := s.parse(namespace, resource, raw); o != nil {
			next[o.Metadata.Name] = o
		}
	}
	s.mu.Lock()
	sp := s.spaces[namespace]
	before, first := sp.objects[resource], !sp.complete()
	sp.objects[resource], sp.kinds[resource] = next, kind
	first = first && sp.complete()
	s.mu.Unlock()
	for name := range before {
		s.queue.add(key{resource, namespace, name}, time.Time{})
	}
	for name := range next {
		s.queue.add(key{resource, namespace, name}, time.Time{})
	}
	if first { // includes sandboxes whose objects were deleted meanwhile
		s.mu.Lock()
		for k := range s.owned {
			s.queue.add(k, time.Time{})
		}
		s.mu.Unlock()
	}
	s.depend(namespace, resource)
}

// change applies a change of an object.
func (s *Service) change(k key, o *object, deleted bool) {
	s.mu.Lock()
	if known := s.spaces[k.namespace].objects[k.resource]; deleted {
		delete(known, k.name)
	} else {
		known[k.name] = o
	}
	s.mu.Unlock()
	s.queue.add(k, time.Time{})
	s.depend(k.namespace, k.resource)
}

// depend queues the objects that depend on a template or a pool.
func (s *Service) depend(namespace, resource string) {
	if resource != templates && resource != pools {
		return
	}
	s.renewPools()
	s.syncAll(func(k key, o *object) bool {
		_, made := o.Status.find(createdCondition)
		return k.namespace == namespace && (k.resource == pools || k.resource == claims && !made)
	})
}

// syncAll queues the objects that f selects.
func (s *Service) syncAll(f func(key, *object) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for namespace, sp := range s.spaces {
		for resource, all := range sp.objects {
			for name, o := range all {
				if k := (key{resource, namespace, name}); f(k, o) {
					s.queue.add(k, time.Time{})
				}
			}
		}
	}
}

// get returns the last known state of an object; false if its namespace is not completely known yet.
func (s *Service) get(k key) (o *object, kind string, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sp := s.spaces[k.namespace]
	if sp == nil || !sp.complete() {
		return nil, "", false
	}
	return sp.objects[k.resource][k.name], sp.kinds[k.resource], true
}
