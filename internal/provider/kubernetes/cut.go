package kubernetes

import (
	"context"
	"errors"
	"fmt"

	"github.com/cove-sandbox/cove/internal/network/tunnel"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/api"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/catalog"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/volumesnapshot"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// newCuts returns the store of VolumeSnapshots.
func (s *session) newCuts() *cuts {
	return &cuts{volumesnapshot.New(volumesnapshot.Config{Class: s.cfg.SnapshotClass, Places: s.places(), Log: s.cfg.Log,
		Labels: map[string]string{labelHub: s.cfg.Name, labelKind: kindSnapshot},
		Owner:  func(owner string) map[string]string { return map[string]string{labelOwner: hashOwner(owner)} }})}
}

// cuts copies persistent homes by VolumeSnapshots, which the driver of their volumes makes.
type cuts struct{ *volumesnapshot.Store }

// cut implements copier. Programs are stopped until the driver has the state of the volume.
func (c *cuts) cut(ctx context.Context, b *box, src *catalog.Source) error {
	var home claim
	switch err := b.api.Get(ctx, claims, b.rec.homeName(), &home); {
	case api.IsMissing(err):
		return fmt.Errorf("%w: the sandbox has no persistent home to take a snapshot of, since it was created "+
			"while kubernetes_disk was ephemeral; create it anew", sandbox.ErrState)
	case err != nil:
		return fmt.Errorf("find the home of the sandbox: %w", err)
	}
	release := func() error { return nil }
	if b.rec.Sandbox.State == sandbox.Running {
		var err error
		if release, err = b.tunnel.Suspend(ctx); errors.Is(err, tunnel.ErrRefused) {
			return fmt.Errorf("%w: %w", sandbox.ErrState, err)
		} else if err != nil {
			return c.interrupted(ctx, err)
		}
	}
	key, err := c.Cut(ctx, b.api, b.rec.Sandbox.Spec.Owner, home.Metadata.Name)
	released := release()
	if err == nil && released != nil { // something may be in it in part
		c.Release(ctx, key)
		err = c.interrupted(ctx, released)
	}
	src.Volume = key
	return err
}

func (c *cuts) interrupted(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return fmt.Errorf("%w: the programs of the sandbox were not stopped during the whole copy: %w", sandbox.ErrUnavailable, err)
}

// await implements copier.
func (c *cuts) await(ctx context.Context, src *catalog.Source) (err error) {
	src.Size, err = c.Await(ctx, src.Volume)
	return err
}

// fill implements copier: no Pod waits to be filled, since its home is a volume made of the snapshot.
func (c *cuts) fill(context.Context, *box) error {
	return fmt.Errorf("%w: the disk must be restored from an archive; set kubernetes_snapshot_endpoint again, or "+
		"roll back to another snapshot", sandbox.ErrState)
}

// limits implements copier.
func (c *cuts) limits() string {
	return "snapshots, forks and rollbacks (kubernetes_snapshot_class) hold the home alone, not the rest of the " +
		"disk; programs are stopped (SIGSTOP) until the driver has taken the snapshot"
}

// Close implements copier.
func (c *cuts) Close() {}
