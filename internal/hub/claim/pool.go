package claim

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"time"

	"github.com/cove-sandbox/cove/internal/hub/environment"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// poolName is the environment of a SandboxWarmPool, which is in no catalog: no caller can name it.
func poolName(namespace, pool string) string {
	sum := sha256.Sum256([]byte(namespace + "/" + pool))
	return "claim." + pool[:min(len(pool), 100)] + "." + hex.EncodeToString(sum[:6])
}

// Warm returns the warm pools, by environment.
func (s *Service) Warm() map[string]environment.Warm {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.wants // never changed, only replaced
}

// renewPools derives the warm pools from the objects.
func (s *Service) renewPools() {
	s.mu.Lock()
	wants := map[string]environment.Warm{}
	for namespace, sp := range s.spaces {
		for name, p := range sp.objects[pools] {
			template := sp.objects[templates][p.Spec.TemplateRef.Name]
			if template == nil || p.Spec.Replicas == nil || *p.Spec.Replicas <= 0 || p.Metadata.Deleted != nil {
				continue
			}
			env, refused := template.toEnvironment(s.Owners[namespace], poolName(namespace, name))
			spec, err := env.Spec(s.Defaults)
			if len(refused) > 0 || err != nil || env.Port != 0 {
				continue // its claims tell, or only our own server can wait for its owner
			}
			wants[env.Name] = environment.Warm{Size: *p.Spec.Replicas, Spec: spec}
		}
	}
	s.wants = wants
	s.mu.Unlock()
	s.Kick()
}

// How often the number of warm sandboxes is written while it changes, and while it does not.
const (
	poolBusy = 2 * time.Second
	poolIdle = 15 * time.Second
)

// syncPool tells how many sandboxes of a pool are ready.
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
		return s.later(k, "write the status of", err)
	}
	next := o.Status
	next.Ready, next.Replicas = ready, ready
	s.remember(k, o.Metadata.UID, next)
	return again
}
