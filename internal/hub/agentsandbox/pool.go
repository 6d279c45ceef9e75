package agentsandbox

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/cove-sandbox/cove/internal/hub/environment"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// poolName is the environment of a SandboxWarmPool. It is in no catalog, so no request can name it.
func poolName(namespace, pool string) string {
	sum := sha256.Sum256([]byte(namespace + "/" + pool))
	return "claim." + pool[:min(len(pool), 100)] + "." + hex.EncodeToString(sum[:6])
}

// Warm returns the warm pools, by environment.
func (s *Service) Warm() map[string]environment.Warm {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.wants // replaced, never modified
}

// renewPools derives the warm pools from the objects.
func (s *Service) renewPools() {
	s.mu.Lock()
	wants := map[string]environment.Warm{}
	left := map[string]float64{} // fraction of an owner's limits that its pools do not use
	for _, namespace := range slices.Sorted(maps.Keys(s.spaces)) {
		sp, owner := s.spaces[namespace], s.Owners[namespace]
		for _, name := range slices.Sorted(maps.Keys(sp.objects[pools])) {
			p := sp.objects[pools][name]
			template := sp.objects[templates][p.Spec.TemplateRef.Name]
			if template == nil || template.Size > 0 || p.Spec.Replicas == nil || *p.Spec.Replicas <= 0 || p.Metadata.Deleted != nil {
				continue
			}
			env, refused := template.toEnvironment(owner, poolName(namespace, name))
			spec, err := env.Spec(s.Defaults)
			if len(refused)+len(s.unenforced(env)) > 0 || err != nil || env.Port != 0 {
				continue // claims report the problems; only our own server supports warm pools
			}
			if size := s.allowed(left, owner, *p.Spec.Replicas, spec); size > 0 {
				wants[env.Name] = environment.Warm{Size: size, Spec: spec}
			}
		}
	}
	s.wants = wants
	s.mu.Unlock()
	s.Notify()
}

// allowed returns the size of a pool within the limits of its owner. Warm sandboxes have no owner and count
// for no limit, so a pool could otherwise exceed the limits.
func (s *Service) allowed(left map[string]float64, owner string, size int, spec sandbox.Spec) int {
	if s.MaxSandboxes == nil {
		return size
	}
	if _, seen := left[owner]; !seen {
		left[owner] = 1
	}
	limit := s.MaxSandboxes(owner, spec)
	if limit <= 0 {
		return 0
	}
	size = int(min(float64(size), left[owner]*float64(limit)+1e-9)) // the product can exceed an int
	left[owner] -= float64(size) / float64(limit)
	return size
}

// Intervals for updates of the number of warm sandboxes, while it changes and while it does not.
const (
	poolBusy = 2 * time.Second
	poolIdle = 15 * time.Second
)

// syncPool writes the number of ready sandboxes of a pool.
func (s *Service) syncPool(ctx context.Context, k key, kind string, o *object) time.Time {
	if o == nil || o.Metadata.Deleted != nil {
		return time.Time{}
	}
	name := poolName(k.namespace, k.name)
	ready, want := s.Ready()[name], s.Warm()[name].Size
	again := time.Now().Add(poolIdle)
	if ready != want {
		again = time.Now().Add(poolBusy)
	}
	if o.Status.Ready == ready && o.Status.Replicas == ready {
		return again
	}
	err := s.Cluster.SetStatus(ctx, kind, k.namespace, k.name, o.Metadata.UID, map[string]any{"replicas": ready, "readyReplicas": ready})
	switch {
	case errors.Is(err, sandbox.ErrNotFound):
		return time.Time{}
	case err != nil:
		return s.later(k, "write status", err)
	}
	next := o.Status
	next.Ready, next.Replicas = ready, ready
	s.remember(k, o.Metadata.UID, next)
	return again
}
