package kubernetes

import (
	"context"
	"fmt"
	"time"

	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/api"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/cluster"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// leaseHolder holds the lease of the hub that manages the sandboxes of a name. It never compares clocks of
// different machines: a lease has expired if it was not renewed while this hub watched it for its duration.
type leaseHolder struct {
	*cluster.Session
	id    string
	lease lease
	held  bool
}

func (h *leaseHolder) name() string { return "cove-hub-" + h.Config.Name }

func (h *leaseHolder) interval() time.Duration { return h.Config.LeaseTime / 3 }

// acquire takes the lease. It returns ErrInUse as soon as another holder renews it.
func (h *leaseHolder) acquire(ctx context.Context) error {
	var seen lease
	var deadline time.Time
	for first := true; ; first = false {
		var now lease
		err := h.Client.Get(ctx, leases, h.name(), &now)
		if err != nil && !api.IsMissing(err) {
			return err
		}
		free := now.Spec.HolderIdentity == "" || now.Spec.HolderIdentity == h.id // no other process has our folder
		switch {
		case free || !first && now.Spec == seen.Spec && time.Now().After(deadline):
			if err := h.take(ctx, now); !api.IsConflict(err) {
				return err
			}
			// Another hub has changed it first.
		case !first && now.Spec != seen.Spec:
			return fmt.Errorf("%w: hub %q of namespace %q", sandbox.ErrInUse, h.Config.Name, h.Config.Namespace)
		}
		if first {
			seen = now
			deadline = time.Now().Add(max(h.Config.LeaseTime, time.Duration(now.Spec.LeaseDurationSeconds)*time.Second))
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: hub %q of namespace %q: %w", sandbox.ErrInUse, h.Config.Name, h.Config.Namespace, context.Cause(ctx))
		case <-time.After(h.interval() / 4):
		}
	}
}

// take writes the ID of this hub into the lease. It fails with a conflict if the lease has changed.
func (h *leaseHolder) take(ctx context.Context, now lease) error {
	stamp := time.Now().UTC().Format("2006-01-02T15:04:05.000000Z07:00")
	next := lease{Object: api.NewObject("coordination.k8s.io/v1", "Lease",
		api.Meta{Name: h.name(), Labels: map[string]string{cluster.LabelHub: h.Config.Name}, ResourceVersion: now.Metadata.ResourceVersion})}
	next.Spec = leaseSpec{HolderIdentity: h.id, LeaseDurationSeconds: max(1, int(h.Config.LeaseTime/time.Second)),
		AcquireTime: stamp, RenewTime: stamp, LeaseTransitions: now.Spec.LeaseTransitions + 1}
	if now.Spec.HolderIdentity == h.id {
		next.Spec.AcquireTime, next.Spec.LeaseTransitions = now.Spec.AcquireTime, now.Spec.LeaseTransitions
	}
	var err error
	if now.Metadata.ResourceVersion == "" {
		next.Metadata.Annotations = map[string]string{cluster.NoteCreated: h.id + " " + stamp}
		err = h.Client.Create(ctx, leases, next, &h.lease)
	} else {
		next.Metadata.Annotations = now.Metadata.Annotations
		err = h.Client.Replace(ctx, leases, h.name(), next, &h.lease)
	}
	h.held = h.held || err == nil
	return err
}

// renew keeps the lease until ctx ends, and calls lost if another hub has taken it.
func (h *leaseHolder) renew(ctx context.Context, lost func()) {
	tick := time.NewTicker(h.interval())
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		err := h.take(ctx, h.lease)
		if api.IsConflict(err) || api.IsMissing(err) {
			// It was changed or removed, or the response to an earlier attempt was lost.
			var now lease
			if err = h.Client.Get(ctx, leases, h.name(), &now); err == nil || api.IsMissing(err) {
				if now.Spec.HolderIdentity != h.id && now.Spec.HolderIdentity != "" {
					h.held = false
					lost()
					return
				}
				h.lease = now
				err = h.take(ctx, now)
			}
		}
		if err != nil && ctx.Err() == nil {
			h.Config.Log.Warn("cannot renew the lease of this hub; retrying", "error", err)
		}
	}
}

// releaseTimeout bounds the release of the lease if the API server does not answer.
const releaseTimeout = 2 * time.Second

// release lets the next hub start immediately.
func (h *leaseHolder) release() {
	if !h.held {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), releaseTimeout)
	defer cancel()
	next := h.lease
	next.Spec.HolderIdentity = ""
	if err := h.Client.Replace(ctx, leases, h.name(), next, nil); err != nil {
		h.Config.Log.Warn("cannot release the lease of this hub; it expires", "error", err)
	}
}
