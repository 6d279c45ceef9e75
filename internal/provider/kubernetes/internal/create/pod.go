package create

import (
	"context"
	"fmt"
	"time"

	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/api"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/box"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/cluster"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/watch"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// Create creates a Pod.
func (c *Creator) Create(ctx context.Context, ns *api.Client, p Pod) error {
	call, cancel := api.Steady(ctx)
	defer cancel()
	var created watch.Pod
	if err := ns.Create(call, cluster.Pods, p, &created); err != nil {
		return fmt.Errorf("create Pod: %w", cluster.Explain(err))
	}
	c.Pods.Add(created)
	return nil
}

// killGrace is the shortest grace period with which the kubelet confirms the end of a Pod. Without a grace
// period, it does not confirm.
const killGrace = time.Second

// Bounds of the wait for an object that was deleted.
const (
	ConfirmTime = time.Minute // also how long a node may take to confirm the end of a Pod
	ConfirmTick = time.Second // the interval of queries
)

// Remove removes the current Pod of a sandbox and returns when it does not exist.
func (c *Creator) Remove(ctx context.Context, b *box.Box, grace time.Duration) error {
	b.Detach()
	return c.RemovePod(ctx, b.API, b.Record.PodName(), grace)
}

// RemovePod removes a Pod and returns when it does not exist.
func (c *Creator) RemovePod(ctx context.Context, ns *api.Client, name string, grace time.Duration) error {
	if c.Pods.Idle(name) {
		grace = 0 // no process has to end, and a kubelet that pulls an image would confirm only afterwards
	} else {
		grace = max(grace, killGrace)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace+ConfirmTime+api.CallTime)
	defer cancel()
	changed, unsubscribe := c.Pods.Subscribe(name)
	defer unsubscribe()
	if err := ns.Remove(ctx, cluster.Pods, name, grace); err != nil {
		return fmt.Errorf("remove Pod: %w", err)
	}
	began, forced := time.Now(), false
	for {
		if c.Pods.Missing(name) {
			return nil
		}
		select {
		case <-changed:
			continue
		case <-ctx.Done():
			return fmt.Errorf("remove Pod: its node did not confirm termination: %w", context.Cause(ctx))
		case <-time.After(ConfirmTick):
		}
		var p watch.Pod
		switch err := ns.Get(ctx, cluster.Pods, name, &p); {
		case api.IsMissing(err):
			c.Pods.Drop(name)
			return nil
		case err == nil && !forced && time.Since(began) > grace+ConfirmTime:
			c.Config.Log.Warn("node did not confirm termination; deleting the Pod by force", "pod", name)
			forced = true
			if err := ns.Remove(ctx, cluster.Pods, name, 0); err != nil {
				return fmt.Errorf("remove Pod: %w", err)
			}
		}
	}
}

// NeedsResize reports whether other resources require a change of the Pod.
func NeedsResize(from, to sandbox.Resources) bool {
	from.Disk, from.Files, from.Pids, from.DiskRate, from.Bandwidth = to.Disk, to.Files, to.Pids, to.DiskRate, to.Bandwidth
	return from != to
}

// Resize changes the CPU and memory of a running Pod.
func (c *Creator) Resize(ctx context.Context, b *box.Box, want sandbox.Resources) error {
	call, cancel := api.Steady(ctx)
	defer cancel()
	next := c.resources(want)
	delete(next.Limits, "ephemeral-storage")
	delete(next.Requests, "ephemeral-storage")
	change := map[string]any{"spec": map[string]any{"containers": []any{map[string]any{"name": cluster.Container, "resources": next}}}}
	err := b.API.Patch(call, cluster.Pods, []string{b.Record.PodName(), "resize"}, api.StrategicPatch, change, nil)
	switch {
	case api.IsMissing(err):
		return fmt.Errorf("%w: changing the resources of a running Pod requires Kubernetes 1.33", sandbox.ErrUnsupported)
	case err != nil:
		return fmt.Errorf("change the resources of the Pod: %w", cluster.Explain(err))
	}
	return nil
}
