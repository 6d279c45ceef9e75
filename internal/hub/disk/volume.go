package disk

import (
	"context"
	"slices"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/hub/internal/caller"
	"github.com/cove-sandbox/cove/internal/hub/internal/fault"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// VolumeOps lists the operations on volumes.
func (s *Service) VolumeOps() []op.Op {
	return []op.Op{
		op.New(op.Spec{Name: "volume_create", Tool: "createVolume", Route: "POST /api/v1/volume", Tag: "volume",
			Doc: "Create an empty volume: a folder that outlives sandboxes. Several sandboxes can mount it."}, s.CreateVolume),
		op.New(op.Spec{Name: "volume_list", Access: op.AccessRead, Tool: "listVolumes", Route: "GET /api/v1/volume",
			Tag: "volume", ReadOnly: true,
			Columns: []string{"name", "size", "created", "sandboxes"},
			Doc:     "List volumes with their sizes and the sandboxes that mount them."}, s.Volumes),
		op.New(op.Spec{Name: "volume_delete", Tool: "deleteVolume", Route: "DELETE /api/v1/volume/{volume}",
			Tag: "volume", Verb: "volume rm", Destructive: true,
			Doc: "Delete a volume and everything in it. Fails while a sandbox mounts it."}, s.DeleteVolume),
	}
}

// CreateVolumeIn describes a new volume.
type CreateVolumeIn struct {
	Name string `json:"name" arg:"true" doc:"Name (a-z, 0-9 and -, at most 50)"`
}

// VolumeOut is a volume.
type VolumeOut struct {
	Name      string    `json:"name"`
	User      string    `json:"user,omitempty"`
	Size      int64     `json:"size" doc:"Bytes on disk"`
	Limit     int64     `json:"limit,omitempty" doc:"Maximum size in bytes"`
	Created   time.Time `json:"created"`
	Sandboxes []string  `json:"sandboxes" doc:"IDs of the sandboxes that mount it"`
}

func volumeOut(v sandbox.VolumeInfo) VolumeOut {
	return VolumeOut{v.Name, v.Owner, v.Size, v.Limit, v.Created.UTC(), slices.Clone(v.Sandboxes)}
}

// CreateVolume creates a volume.
func (s *Service) CreateVolume(ctx context.Context, in CreateVolumeIn) (VolumeOut, error) {
	p, err := s.volumes.provider()
	if err != nil {
		return VolumeOut{}, err
	}
	op.CallOf(ctx).TargetName = fault.Clip(in.Name)
	if err := sandbox.CheckName(in.Name); err != nil {
		return VolumeOut{}, op.Errorf(op.Invalid, "volume: %w", err)
	}
	// A new volume is empty, but an owner without free quota cannot create one.
	room := s.Quota.OpenRoom(ctx, caller.Owner(ctx))
	defer room.Release()
	if err := room.Take(1); err != nil {
		return VolumeOut{}, err
	}
	v, err := p.CreateVolume(ctx, caller.Owner(ctx), in.Name)
	if err != nil {
		return VolumeOut{}, opError("volume", in.Name, "", err)
	}
	return volumeOut(v), nil
}

// Volumes lists volumes and updates their sizes in the quota.
func (s *Service) Volumes(ctx context.Context, in caller.UserIn) ([]VolumeOut, error) {
	list, err := s.volumes.selected(ctx, in.User)
	if err != nil {
		return nil, err
	}
	out := []VolumeOut{}
	for _, v := range list {
		out = append(out, volumeOut(v))
	}
	return out, nil
}

// DeleteVolumeIn names a volume.
type DeleteVolumeIn struct {
	Volume string `path:"volume" doc:"Name of the volume"`
	User   string `query:"user" default:"" doc:"Tenant that owns it; admins only"`
}

// DeleteVolume deletes a volume.
func (s *Service) DeleteVolume(ctx context.Context, in DeleteVolumeIn) (string, error) {
	if err := s.volumes.remove(ctx, in.User, in.Volume); err != nil {
		return "", err
	}
	return "Volume " + in.Volume + " deleted successfully", nil
}
