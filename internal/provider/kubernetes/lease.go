package kubernetes

import (
	"context"
	"fmt"
	"time"

	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/api"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// holder holds the lease that says which hub looks after the sandboxes of a name. Times of other
// machines are never compared with ours: a lease is over when it was not renewed while we
// watched for as long as it lasts.
type holder struct {
	*session
	me    string
	lease lease
	held  bool
}

func (h *holder) name() string { return "cove-hub-" + h.cfg.Name }

func (h *holder) interval() time.Duration { return h.cfg.LeaseTime / 3 }

// acquire takes the lease. It returns ErrInUse as soon as another holder renews it.
func (h *holder) acquire(ctx context.Context) error {
	var seen lease
	var deadline time.Time
	for first := true; ; first = false {
		var now lease
		err := h.client.Get(ctx, leases, h.name(), &now)
		if err != nil && !api.IsMissing(err) {
			return err
		}
		free := now.Spec.HolderIdentity == "" || now.Spec.HolderIdentity == h.me // we have the lock of our folder
		switch {
		case free || !first && now.Spec == seen.Spec && time.Now().After(deadline):
			if err := h.take(ctx, now); !api.IsConflict(err) {
				return err
			}
			// Somebody was faster.
		case !first && now.Spec != seen.Spec:
			return fmt.Errorf("%w: hub %q of namespace %q", sandbox.ErrInUse, h.cfg.Name, h.cfg.Namespace)
		}
		if first {
			seen = now
			deadline = time.Now().Add(max(h.cfg.LeaseTime, time.Duration(now.Spec.LeaseDurationSeconds)*time.Second))
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: hub %q of namespace %q: %w", sandbox.ErrInUse, h.cfg.Name, h.cfg.Namespace, context.Cause(ctx))
		case <-time.After(h.interval() / 4):
		}
	}
}

// take writes our name into the lease, unless it has changed since.
func (h *holder) take(ctx context.Context, now lease) error {
	stamp := time.Now().UTC().Format("2006-01-02T15:04:05.000000Z07:00")
	next := lease{object: api.NewObject("coordination.k8s.io/v1", "Lease",
		meta{Name: h.name(), Labels: map[string]string{labelHub: h.cfg.Name}, ResourceVersion: now.Metadata.ResourceVersion})}
	next.Spec = leaseSpec{HolderIdentity: h.me, LeaseDurationSeconds: max(1, int(h.cfg.LeaseTime/time.Second)),
		AcquireTime: stamp, RenewTime: stamp, LeaseTransitions: now.Spec.LeaseTransitions + 1}
	if now.Spec.HolderIdentity == h.me {
		next.Spec.AcquireTime, next.Spec.LeaseTransitions = now.Spec.AcquireTime, now.Spec.LeaseTransitions
	}
	var err error
	if now.Metadata.ResourceVersion == "" {
		next.Metadata.Annotations = map[string]string{noteCreated: h.me + " " + stamp}
		err = h.client.Create(ctx, leases, next, &h.lease)
	} else {
		next.Metadata.Annotations = now.Metadata.Annotations
		err = h.client.Replace(ctx, leases, h.name(), next, &h.lease)
	}
	h.held = h.held || err == nil
	return err
}

// renew keeps the lease until ctx ends, and calls lost if another has taken it.
func (h *holder) renew(ctx context.Context, lost func()) {
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
			// Someone changed or removed it, or an earlier answer was lost.
			var now lease
			if err = h.client.Get(ctx, leases, h.name(), &now); err == nil || api.IsMissing(err) {
				if now.Spec.HolderIdentity != h.me && now.Spec.HolderIdentity != "" {
					h.held = false
					lost()
					return
				}
				h.lease = now
				err = h.take(ctx, now)
			}
		}
		if err != nil && ctx.Err() == nil {
			h.cfg.Log.Warn("cannot renew the lease of this hub; trying again", "error", err)
		}
	}
}

// releaseTime bounds the farewell to an API server that does not answer.
const releaseTime = 2 * time.Second

// release lets the next hub begin at once.
func (h *holder) release() {
	if !h.held {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), releaseTime)
	defer cancel()
	next := h.lease
	next.Spec.HolderIdentity = ""
	if err := h.client.Replace(ctx, leases, h.name(), next, nil); err != nil {
		h.cfg.Log.Warn("cannot release the lease of this hub; it expires", "error", err)
	}
}
