// Package disks owns the disks of sandboxes: the PersistentVolumeClaims of homes and volumes, and the copies of
// disks from which snapshots and forks are made.
package disks

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/api"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/box"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/cluster"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// Volumes owns the claims of volumes and homes.
type Volumes struct {
	*cluster.Session
	// Sandboxes lists all sandboxes, which may use volumes.
	Sandboxes func() ([]sandbox.Sandbox, error)

	mu sync.Mutex // held while volumes are created and deleted
}

// newClaim returns a claim.
func (v *Volumes) newClaim(m api.Meta, size int64, mode string) Claim {
	c := Claim{Object: api.NewObject("v1", "PersistentVolumeClaim", m)}
	c.Spec = claimSpec{AccessModes: []string{mode},
		Resources: claimResources{Requests: map[string]string{"storage": strconv.FormatInt(size, 10)}}}
	if v.Config.StorageClass != "" {
		c.Spec.StorageClassName = &v.Config.StorageClass
	}
	return c
}

// Prepare creates the missing claims of a new sandbox. The sandbox must be listed by Sandboxes, so that its
// volumes cannot be deleted.
func (v *Volumes) Prepare(ctx context.Context, b *box.Box) error {
	sb := b.Record.Sandbox
	if v.Config.Persistent {
		if err := v.createHome(ctx, b); err != nil {
			return err
		}
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, volume := range sb.Spec.Volumes {
		if _, err := v.create(ctx, sb.Spec.Owner, volume.Name); err != nil && !api.IsConflict(err) {
			return err
		}
	}
	return nil
}

// Create creates a volume.
func (v *Volumes) Create(ctx context.Context, owner, name string) (sandbox.VolumeInfo, error) {
	if err := sandbox.CheckName(name); err != nil {
		return sandbox.VolumeInfo{}, fmt.Errorf("%w: volume: %w", sandbox.ErrInvalid, err)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	info, err := v.create(ctx, owner, name)
	if api.IsConflict(err) {
		err = fmt.Errorf("%w: volume %q", sandbox.ErrConflict, name)
	}
	return info, err
}

func (v *Volumes) create(ctx context.Context, owner, name string) (sandbox.VolumeInfo, error) {
	call, cancel := api.Steady(ctx)
	defer cancel()
	mode := "ReadWriteOnce"
	if v.Config.SharedVolumes {
		mode = "ReadWriteMany"
	}
	m := api.Meta{Name: v.VolumeClaim(owner, name),
		Labels: map[string]string{cluster.LabelHub: v.Config.Name, cluster.LabelKind: cluster.KindVolume,
			cluster.LabelOwner: cluster.HashOwner(owner)},
		Annotations: map[string]string{cluster.NoteVolume: name, cluster.NoteOwner: owner,
			cluster.NoteCreated: time.Now().UTC().Format(time.RFC3339Nano)}}
	var created Claim
	if err := v.ForOwner(owner).Create(call, cluster.Claims, v.newClaim(m, v.Config.VolumeSize, mode), &created); err != nil {
		return sandbox.VolumeInfo{}, fmt.Errorf("create volume: %w", cluster.Explain(err))
	}
	return created.info(), nil
}

// List lists the volumes of an owner, or all volumes.
func (v *Volumes) List(ctx context.Context, owner string) ([]sandbox.VolumeInfo, error) {
	var found []Claim
	for _, ns := range v.Namespaces() {
		more, _, err := api.ListAll[Claim](ctx, ns, cluster.Claims, v.Selector(cluster.KindVolume))
		if err != nil {
			return nil, fmt.Errorf("list volumes: %w", err)
		}
		found = append(found, more...)
	}
	boxes, err := v.Sandboxes()
	if err != nil {
		return nil, err
	}
	all := []sandbox.VolumeInfo{}
	for _, c := range found {
		if info := c.info(); c.Metadata.DeletionTimestamp == nil && (owner == "" || owner == info.Owner) {
			info.Sandboxes = sandbox.VolumeUsers(boxes, info.Owner, info.Name)
			all = append(all, info)
		}
	}
	slices.SortFunc(all, func(a, b sandbox.VolumeInfo) int {
		return cmp.Or(strings.Compare(a.Owner, b.Owner), strings.Compare(a.Name, b.Name))
	})
	return all, nil
}

// Delete deletes a volume that no sandbox uses.
func (v *Volumes) Delete(ctx context.Context, owner, name string) error {
	if sandbox.CheckName(name) != nil {
		return fmt.Errorf("%w: %q", sandbox.ErrNoVolume, name)
	}
	if err := v.deleteClaim(ctx, owner, name); err != nil {
		return err
	}
	return v.awaitRemoval(ctx, v.ForOwner(owner), v.VolumeClaim(owner, name))
}

func (v *Volumes) deleteClaim(ctx context.Context, owner, name string) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	var found Claim
	err := v.ForOwner(owner).Get(ctx, cluster.Claims, v.VolumeClaim(owner, name), &found)
	if api.IsMissing(err) ||
		err == nil && (found.Metadata.Annotations[cluster.NoteOwner] != owner || found.Metadata.DeletionTimestamp != nil) {
		return fmt.Errorf("%w: %q", sandbox.ErrNoVolume, name)
	}
	if err != nil {
		return fmt.Errorf("find volume: %w", err)
	}
	boxes, err := v.Sandboxes()
	if err != nil {
		return err
	}
	if users := sandbox.VolumeUsers(boxes, owner, name); len(users) > 0 {
		return fmt.Errorf("%w: volume %q is used by %s; delete that first", sandbox.ErrState, name, strings.Join(users, ", "))
	}
	call, cancel := api.Steady(ctx)
	defer cancel()
	if err := v.ForOwner(owner).Remove(call, cluster.Claims, found.Metadata.Name, -1); err != nil {
		return fmt.Errorf("delete volume: %w", err)
	}
	return nil
}
