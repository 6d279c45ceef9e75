package disks

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/api"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/box"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/cluster"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/volumesnapshot"
)

// createHome creates the claim of the next Pod's home, from a snapshot if there is one.
func (v *Volumes) createHome(ctx context.Context, b *box.Box) error {
	sb := b.Record.Sandbox
	size := cmp.Or(sb.Spec.Resources.Disk, v.Config.Defaults.Disk)
	if b.Source != nil && b.Source.Volume != "" {
		size = max(size, b.Source.Size)
	}
	home := v.newClaim(api.Meta{Name: b.HomeClaim(), Labels: v.Labels(sb), Annotations: cluster.Annotations(sb),
		OwnerReferences: b.OwnerReferences()}, size, "ReadWriteOnce")
	if b.Source != nil && b.Source.Volume != "" {
		_, name, _ := strings.Cut(b.Source.Volume, "/")
		home.Spec.DataSource = &dataSource{APIGroup: volumesnapshot.Group, Kind: "VolumeSnapshot", Name: name}
	}
	if err := b.API.Create(ctx, cluster.Claims, home, nil); err != nil {
		return fmt.Errorf("create PersistentVolumeClaim: %w", cluster.Explain(err))
	}
	return nil
}

// ReplaceHome creates the next home of a sandbox that is being restored; otherwise it is a no-op.
func (v *Volumes) ReplaceHome(ctx context.Context, b *box.Box) error {
	if !b.ReplacesHome() {
		return nil
	}
	call, cancel := api.Steady(ctx)
	defer cancel()
	return v.createHome(call, b)
}

// DropReplacement removes the claim that ReplaceHome has created.
func (v *Volumes) DropReplacement(ctx context.Context, b *box.Box) error {
	if !b.ReplacesHome() {
		return nil
	}
	return v.removeClaim(ctx, b.API, b.HomeClaim())
}

// RemoveReplaced removes a home that was replaced.
func (v *Volumes) RemoveReplaced(ctx context.Context, b *box.Box, claim string) {
	if err := v.removeClaim(ctx, b.API, claim); err != nil {
		v.Config.Log.Warn("cannot remove the previous home of a sandbox; the next start of the hub retries", "claim", claim, "error", err)
	}
}

// RemoveHome removes the home of a sandbox.
func (v *Volumes) RemoveHome(ctx context.Context, b *box.Box) error {
	if !v.Config.Persistent {
		return nil
	}
	if err := v.removeClaim(ctx, b.API, b.Record.HomeName()); err != nil {
		return fmt.Errorf("remove PersistentVolumeClaim: %w", err)
	}
	return nil
}

// noteProvisioner is the annotation of a claim whose volume is being created.
const noteProvisioner = "volume.kubernetes.io/storage-provisioner"

// Provisioning reports whether the home of the next Pod is being created from a snapshot. Until then no node can
// run the Pod.
func (v *Volumes) Provisioning(ctx context.Context, b *box.Box) bool {
	if b.Source == nil || b.Source.Volume == "" {
		return false
	}
	var home Claim
	err := b.API.Get(ctx, cluster.Claims, b.HomeClaim(), &home)
	return err == nil && home.Status.Phase == "Pending" && home.Metadata.Annotations[noteProvisioner] != ""
}
