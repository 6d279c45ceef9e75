// Package agentsandbox serves the objects of kubernetes-sigs/agent-sandbox, where a cluster has them: a
// SandboxClaim or a Sandbox becomes a sandbox of the hub, made from a SandboxTemplate as an environment,
// and a SandboxWarmPool becomes a warm pool.
//
// It owns the objects' status, and the sandboxes whose record names an object. The owner of these is
// configured for a namespace: who may write objects there is the cluster's decision, and nothing in an object
// can name another owner. It keeps no state that the cluster or the provider does not have, and refuses,
// in the object's conditions, what a sandbox cannot be.
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

// Cluster is where the objects are. A kind is the path of its API without the namespace.
type Cluster interface {
	// Follow calls replace with all objects and change with every later change, until ctx ends.
	// It returns ErrNotFound if the cluster does not know the kind.
	Follow(ctx context.Context, kind, namespace string, replace func([]json.RawMessage),
		change func(deleted bool, object json.RawMessage)) error
	// SetStatus and Remove do nothing to an object with another UID, and return ErrNotFound.
	SetStatus(ctx context.Context, kind, namespace, name, uid string, status any) error
	Remove(ctx context.Context, kind, namespace, name, uid string) error
}

// Sandboxes makes sandboxes, as for any other caller.
type Sandboxes interface {
	MakeFrom(ctx context.Context, env environment.Environment, in lifecycle.CreateIn, change func(*sandbox.Spec)) (sandbox.Sandbox, error)
	Delete(ctx context.Context, in lifecycle.NameIn) (string, error)
	Stop(ctx context.Context, in lifecycle.NameIn) (lifecycle.Object, error)
	Start(ctx context.Context, in lifecycle.NameIn) (lifecycle.Object, error)
}

// Config of a Service.
type Config struct {
	Cluster Cluster
	// Owners are the owners of the sandboxes of each namespace that is served.
	Owners    map[string]string
	Sandboxes Sandboxes
	Provider  sandbox.Provider
	History   *history.Log
	Tasks     *task.Group
	// Record writes what an operation changes into the audit log.
	Record func(op.Op) op.Op
	// Ready counts the warm sandboxes by environment, and Kick tells that other ones are wanted.
	Ready func() map[string]int
	Kick  func()
	// Most returns how many sandboxes of a spec the limits of an owner allow; nil: any number.
	Most     func(owner string, spec sandbox.Spec) int
	Defaults environment.Defaults
	Log      *slog.Logger
}

// CreateOp is the name of the operation that creates a sandbox, in the audit log.
const CreateOp = "claim_create"

// Service serves the objects.
type Service struct {
	Config
	queue queue
	ops   map[string]op.Op // how sandboxes are changed, with a record of it

	mu     sync.Mutex
	spaces map[string]*space
	owned  map[key]map[string]string // ID of the sandbox, by object and UID
	wants  map[string]environment.Warm
}

// space is what is known of a namespace.
type space struct {
	kinds   map[string]string // path of each resource; empty: the cluster does not know it
	objects map[string]map[string]*object
	tries   map[key]attempts
}

// attempts are the failed creates of an object.
type attempts struct {
	count int
	last  time.Time
	full  bool // there was no room for it
}

// complete reports whether all resources are known.
func (s *space) complete() bool { return len(s.kinds) == len(resources) }

// New returns a service. It starts nothing.
func New(cfg Config) *Service {
	s := &Service{Config: cfg, spaces: map[string]*space{}, owned: map[key]map[string]string{}, queue: queue{kick: make(chan struct{}, 1)}}
	for namespace := range cfg.Owners {
		s.spaces[namespace] = &space{kinds: map[string]string{}, objects: map[string]map[string]*object{}, tries: map[key]attempts{}}
	}
	s.ops = s.recorded()
	return s
}

// firstLook bounds the wait for a cluster that does not answer.
const firstLook = 10 * time.Second

// Begin follows the objects. It returns when they are known, or cannot be: before that, no warm sandbox may
// be taken for one that nobody wants.
func (s *Service) Begin(ctx context.Context) {
	var looked sync.WaitGroup
	for namespace := range s.Owners {
		for _, resource := range resources {
			looked.Add(1)
			once := sync.OnceFunc(looked.Done)
			if !s.Tasks.Go(func(ctx context.Context) { defer once(); s.follow(ctx, namespace, resource, once) }) {
				once()
			}
		}
	}
	all := make(chan struct{})
	s.Tasks.Go(func(context.Context) { looked.Wait(); close(all) })
	select {
	case <-all:
	case <-ctx.Done():
	case <-time.After(firstLook):
	}
}

// Serve takes up the sandboxes that serve objects, and serves the others.
func (s *Service) Serve(ctx context.Context) {
	seq := s.History.Last()
	if err := s.index(ctx); err != nil {
		s.Log.Error("claims are not served", "error", err)
		return
	}
	s.Tasks.Go(func(ctx context.Context) { s.queue.run(ctx, s.Tasks, s.sync) })
	s.Tasks.Go(func(ctx context.Context) { s.followSandboxes(ctx, seq) })
}

// index finds the sandboxes that serve objects of our namespaces.
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

// own notes which sandbox serves an object.
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

// ownedBy returns the sandboxes of an object and of former ones with its name, by UID.
func (s *Service) ownedBy(k key) map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.owned[k])
}

// followSandboxes looks at an object again whenever its sandbox changes.
func (s *Service) followSandboxes(ctx context.Context, seq int64) {
	for {
		next := s.History.After(seq)
		if next.Lost {
			seq = next.Last
			if err := s.index(ctx); err != nil && ctx.Err() == nil {
				s.Log.Error("cannot list the sandboxes of claims", "error", err)
			}
			s.syncAll(func(key, *object) bool { return true })
		}
		for _, e := range next.Events {
			seq = e.Seq
			if k, _, ok := markOf(e.Sandbox); ok {
				s.queue.add(k, time.Time{})
			}
			if e.Kind == string(sandbox.Deleted) {
				s.offer(e.Sandbox.Spec.Owner)
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

// offer tries again soon what there was no room for, as an owner has one sandbox less.
func (s *Service) offer(owner string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for namespace, sp := range s.spaces {
		for k, t := range sp.tries {
			if t.full && s.Owners[namespace] == owner {
				s.queue.add(k, t.last.Add(minRetry)) // a create that fails ends with a deletion, too
			}
		}
	}
}

// lookAgain is how long a cluster without the kinds, or without the rights to them, is left alone.
const lookAgain = 30 * time.Second

// follow keeps what is known of a resource true until ctx ends. It calls looked after each attempt.
func (s *Service) follow(ctx context.Context, namespace, resource string, looked func()) {
	told := ""
	for ctx.Err() == nil {
		var err error
		for _, version := range versions {
			kind := kindOf(resource, version)
			err = s.Cluster.Follow(ctx, kind, namespace, func(all []json.RawMessage) {
				s.replace(namespace, resource, kind, all)
				looked()
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
		case errors.Is(err, sandbox.ErrNotFound): // nor are there objects that could have been deleted
			s.replace(namespace, resource, "", nil)
		case err != nil && err.Error() != told:
			told = err.Error()
			s.Log.Warn("cannot follow the objects of a claim; grant the role of deploy/kubernetes/claims.yaml",
				"resource", resource, "namespace", namespace, "error", err)
		}
		looked()
		select {
		case <-ctx.Done():
		case <-time.After(lookAgain):
		}
	}
}

// maxObject bounds an object: whoever may create objects in one namespace must not take the memory of the hub, which is
// for all of them. Command, arguments and variables of a sandbox have at most 96 KiB.
const maxObject = 192 << 10

// parse reads an object; nil if it cannot be read, which the API server should have prevented. Of one that is too
// large, it keeps the name alone.
func (s *Service) parse(namespace, resource string, raw json.RawMessage) *object {
	var o object
	if len(raw) > maxObject {
		raw = []byte(fmt.Sprintf(`{"metadata":%s,"size":%d}`, metadataOf(raw), len(raw)))
	}
	if err := json.Unmarshal(raw, &o); err != nil {
		s.Log.Warn("cannot read an object", "resource", resource, "namespace", namespace, "error", err)
		return nil
	}
	return &o
}

// replace notes that these are all objects of a resource.
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
	if first { // sandboxes whose objects were deleted meanwhile
		s.mu.Lock()
		for k := range s.owned {
			s.queue.add(k, time.Time{})
		}
		s.mu.Unlock()
	}
	s.depend(namespace, resource)
}

// change notes a change of an object.
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

// depend looks again at what depends on a template or a pool.
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

// syncAll looks again at the objects that f selects.
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

// get returns an object as it was last seen; false if not all of its namespace is known yet.
func (s *Service) get(k key) (o *object, kind string, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sp := s.spaces[k.namespace]
	if sp == nil || !sp.complete() {
		return nil, "", false
	}
	return sp.objects[k.resource][k.name], sp.kinds[k.resource], true
}
