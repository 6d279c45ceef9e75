package disks

import (
	"context"
	"errors"
	"fmt"

	"github.com/cove-sandbox/cove/internal/network/tunnel"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/api"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/box"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/catalog"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/cluster"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/volumesnapshot"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// HomeSnapshots copies persistent homes as VolumeSnapshots, which the driver of their volumes creates.
type HomeSnapshots struct{ *volumesnapshot.Store }

// NewHomeSnapshots returns a store. It sends no request.
func NewHomeSnapshots(s *cluster.Session) *HomeSnapshots {
	return &HomeSnapshots{volumesnapshot.New(volumesnapshot.Config{Class: s.Config.SnapshotClass,
		Namespaces: s.Namespaces(), Log: s.Config.Log,
		Labels: map[string]string{cluster.LabelHub: s.Config.Name, cluster.LabelKind: cluster.KindSnapshot},
		Owner: func(owner string) map[string]string {
			return map[string]string{cluster.LabelOwner: cluster.HashOwner(owner)}
		}})}
}

// Cut implements copier. Programs are stopped until the driver has captured the volume.
func (h *HomeSnapshots) Cut(ctx context.Context, b *box.Box, src *catalog.Source) error {
	var home Claim
	switch err := b.API.Get(ctx, cluster.Claims, b.Record.HomeName(), &home); {
	case api.IsMissing(err):
		return fmt.Errorf("%w: the sandbox has no persistent home to take a snapshot of, because it was created "+
			"while kubernetes_disk was ephemeral; recreate it", sandbox.ErrState)
	case err != nil:
		return fmt.Errorf("find the home of the sandbox: %w", err)
	}
	release := func() error { return nil }
	if b.Record.Sandbox.State == sandbox.Running {
		var err error
		if release, err = b.Tunnel.Suspend(ctx); errors.Is(err, tunnel.ErrRefused) {
			return fmt.Errorf("%w: %w", sandbox.ErrState, err)
		} else if err != nil {
			return interrupted(ctx, err)
		}
	}
	key, err := h.Store.Cut(ctx, b.API, b.Record.Sandbox.Spec.Owner, home.Metadata.Name)
	released := release()
	if err == nil && released != nil { // the copy may contain partial writes
		h.Release(ctx, key)
		err = interrupted(ctx, released)
	}
	src.Volume = key
	return err
}

func interrupted(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return fmt.Errorf("%w: the programs of the sandbox were not stopped during the whole copy: %w", sandbox.ErrUnavailable, err)
}

// Await implements copier.
func (h *HomeSnapshots) Await(ctx context.Context, src *catalog.Source) (err error) {
	src.Size, err = h.Store.Await(ctx, src.Volume)
	return err
}

// Fill implements copier. No Pod waits to be filled, because its home is created from the snapshot.
func (h *HomeSnapshots) Fill(context.Context, *box.Box) error {
	return fmt.Errorf("%w: the disk must be restored from an archive; set kubernetes_snapshot_endpoint again, or "+
		"roll back to another snapshot", sandbox.ErrState)
}

// Limits implements copier.
func (h *HomeSnapshots) Limits() string {
	return "snapshots, forks and rollbacks (kubernetes_snapshot_class) include only the home, not the rest of the " +
		"disk; programs are stopped (SIGSTOP) until the driver has taken the snapshot"
}

// Close implements copier.
func (h *HomeSnapshots) Close() {}
