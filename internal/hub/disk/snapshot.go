package disk

import (
	"context"
	"crypto/rand"
	"strings"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/hub/internal/caller"
	"github.com/cove-sandbox/cove/internal/hub/internal/naming"
	"github.com/cove-sandbox/cove/internal/hub/lifecycle"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// SnapshotOps lists the operations on the disks of sandboxes.
func (s *Service) SnapshotOps() []op.Op {
	return []op.Op{
		op.New(op.Spec{Name: "snapshot_create", Tool: "snapshotSandbox", Route: "POST " + one + "/snapshot", Tag: "snapshot",
			Doc: "Save the current disk of a sandbox without interrupting it. Create and " +
				"rollback accept the name of the snapshot."}, s.Snapshot),
		op.New(op.Spec{Name: "sandbox_rollback", Tool: "rollbackSandbox", Route: "POST " + one + "/rollback",
			Tag: "snapshot", Verb: "rollback", Destructive: true,
			Doc: "Restore the disk of a sandbox from a snapshot, in place. All its processes end, and its server restarts."}, s.Rollback),
		op.New(op.Spec{Name: "sandbox_diff", Tool: "diffSandbox", Route: "GET " + one + "/diff", Tag: "snapshot", Verb: "diff", ReadOnly: true,
			Columns: []string{"kind", "path", "size"},
			Doc:     "List the changes on the disk of a sandbox since its image, snapshot or original."}, s.Diff),
		op.New(op.Spec{Name: "snapshot_list", Access: op.AccessRead, Tool: "listSnapshots",
			Route: "GET /api/v1/snapshot", Tag: "snapshot", ReadOnly: true,
			Columns: []string{"name", "sandbox", "size", "created", "parent"},
			Doc:     "List snapshots, oldest first."}, s.Snapshots),
		op.New(op.Spec{Name: "snapshot_delete", Tool: "deleteSnapshot", Route: "DELETE /api/v1/snapshot/{snapshot}",
			Tag: "snapshot", Verb: "snapshot rm", Destructive: true,
			Doc: "Delete a snapshot. Sandboxes created from it are not affected."}, s.DeleteSnapshot),
		op.New(op.Spec{Name: "sandbox_export", Content: op.ContentForeign, Route: "GET " + one + "/export",
			Tag: "snapshot", Verb: "export", Produces: "application/x-tar",
			Doc: "Export the disk of a sandbox as an OCI image in a tar archive: its image and its " +
				"changes. A sandbox without an image is based on files of the host, which are not exported."}, s.Export),
	}
}

// SnapshotIn describes a new snapshot.
type SnapshotIn struct {
	Name     string `path:"name" doc:"Name of the sandbox"`
	Snapshot string `json:"snapshot" arg:"true" default:"" nullable:"true" doc:"Name of the snapshot. Default: generated"`
}

// SnapshotOut is a snapshot.
type SnapshotOut struct {
	Name    string    `json:"name"`
	User    string    `json:"user,omitempty"`
	Sandbox string    `json:"sandbox" doc:"ID of its sandbox, which may be deleted"`
	Parent  string    `json:"parent,omitempty" doc:"Snapshot on which the sandbox was based"`
	Image   string    `json:"image,omitempty"`
	Size    int64     `json:"size" doc:"Bytes that the sandbox has written; shared data is stored once"`
	Created time.Time `json:"created"`
}

func snapshotOut(s sandbox.Snapshot) SnapshotOut {
	return SnapshotOut{s.Name, s.Owner, s.Sandbox, s.Parent, naming.ImageName(s.Image), s.Size, s.Created.UTC()}
}

// Snapshot saves a disk.
func (s *Service) Snapshot(ctx context.Context, in SnapshotIn) (SnapshotOut, error) {
	p, err := s.snapshots.provider()
	if err != nil {
		return SnapshotOut{}, err
	}
	sb, err := s.Fleet.Find(ctx, in.Name)
	if err != nil {
		return SnapshotOut{}, err
	}
	name := in.Snapshot
	if name == "" {
		name = "snap-" + strings.ToLower(rand.Text()[:10])
	}
	if err := sandbox.CheckName(name); err != nil {
		return SnapshotOut{}, op.Errorf(op.Invalid, "snapshot: %w", err)
	}
	room := s.Quota.OpenRoom(ctx, sb.Spec.Owner)
	defer room.Release()
	if err := room.Take(s.diskSize(ctx, sb.ID)); err != nil {
		return SnapshotOut{}, err
	}
	taken, err := p.Snapshot(ctx, sb.ID, name)
	if err != nil {
		return SnapshotOut{}, opError("snapshot", name, in.Name, err)
	}
	s.snapshots.add(taken)
	return snapshotOut(taken), nil
}

// diskSize is the size of a snapshot of a sandbox's disk; 1 if it cannot be measured.
func (s *Service) diskSize(ctx context.Context, id string) int64 {
	if p, ok := s.Provider.(sandbox.Stater); ok && s.Provider.Abilities().Stats {
		if stats, err := p.Stats(ctx, id); err == nil {
			return max(stats.Disk, 1)
		}
	}
	return 1
}

// Snapshots lists snapshots.
func (s *Service) Snapshots(ctx context.Context, in caller.UserIn) ([]SnapshotOut, error) {
	list, err := s.snapshots.selected(ctx, in.User)
	if err != nil {
		return nil, err
	}
	out := []SnapshotOut{}
	for _, x := range list {
		out = append(out, snapshotOut(x))
	}
	return out, nil
}

// DeleteSnapshotIn names a snapshot.
type DeleteSnapshotIn struct {
	Snapshot string `path:"snapshot" doc:"Name of the snapshot"`
	User     string `query:"user" default:"" doc:"Tenant that owns it; admins only"`
}

// DeleteSnapshot deletes a snapshot.
func (s *Service) DeleteSnapshot(ctx context.Context, in DeleteSnapshotIn) (string, error) {
	if err := s.snapshots.remove(ctx, in.User, in.Snapshot); err != nil {
		return "", err
	}
	return "Snapshot " + in.Snapshot + " deleted successfully", nil
}

// RollbackIn names a sandbox and a snapshot.
type RollbackIn struct {
	Name     string `path:"name" doc:"Name of the sandbox"`
	Snapshot string `json:"snapshot" doc:"Name of the snapshot"`
}

// Rollback restores a disk.
func (s *Service) Rollback(ctx context.Context, in RollbackIn) (lifecycle.Object, error) {
	p, err := s.snapshots.provider()
	if err != nil {
		return lifecycle.Object{}, err
	}
	return s.Sandboxes.Change(ctx, in.Name, func(ctx context.Context, id string) error {
		err := s.Fleet.Start(ctx, id, func(ctx context.Context, id string) error { return p.Rollback(ctx, id, in.Snapshot) })
		return opError("snapshot", in.Snapshot, in.Name, err)
	})
}
