package sandbox

import (
	"context"
	"io"
	"slices"
	"time"
)

// What a provider can do with disks. Snapshots and volumes belong to an owner, and their
// names are unique per owner; those of others do not exist for an owner. Unless noted
// otherwise, the promises of Provider hold here, too.

// Snapshotter keeps the disk of a sandbox as it is at one moment.
//
// A snapshot is independent: it needs neither the sandbox it was taken of nor the
// snapshot which that was created from, and all can be deleted in any order while
// sandboxes use them. Disk space is freed when the last that used it is deleted.
// Volumes, memory and processes are not part of a snapshot.
type Snapshotter interface {
	// Snapshot takes a snapshot, for the sandbox's owner, in any state but Creating and
	// Deleting. A running sandbox is suspended meanwhile, so that the snapshot holds
	// everything written before, and nothing in part; it then continues, undisturbed but
	// for the pause. A provider that cannot pause may refuse a running sandbox with
	// ErrState. ErrConflict: the owner has a snapshot of that name.
	Snapshot(ctx context.Context, id, name string) (Snapshot, error)

	// Snapshots lists the snapshots of an owner, or of all if owner is empty, oldest
	// first.
	Snapshots(ctx context.Context, owner string) ([]Snapshot, error)

	// DeleteSnapshot removes a snapshot; what was created from it stays as it is.
	DeleteSnapshot(ctx context.Context, owner, name string) error

	// Rollback resets the disk to one of the owner's snapshots, in place: ID, name and
	// Spec stay. Everything inside is killed, and the server is started on the
	// snapshot's disk, whatever the state was before. If that start fails, the sandbox
	// is Stopped, on the snapshot's disk. ErrInvalid: the snapshot is of a sandbox with
	// another image.
	Rollback(ctx context.Context, id, name string) error
}

// Snapshot describes a snapshot. Spec.Snapshot and Rollback refer to its name.
type Snapshot struct {
	Name  string `json:"name"`
	Owner string `json:"owner,omitempty"`
	// Sandbox is the ID of the sandbox it was taken of, which may not exist any more.
	Sandbox string `json:"sandbox"`
	// Parent is the snapshot that the sandbox's disk had started from, if any.
	Parent string `json:"parent,omitempty"`
	Image  string `json:"image,omitempty"`
	// Size is how much the sandbox had written since it started from an image or
	// snapshot, in bytes. It may use less disk space, because data is shared.
	Size    int64     `json:"size"`
	Created time.Time `json:"created"`
}

// Forker creates running copies of a sandbox.
type Forker interface {
	// Fork creates one sandbox for each spec, with the present disk of the original, as
	// if from a Snapshot, and returns them Running, in that order: all or, after any
	// error, none. Programs are started anew. Image and Snapshot of the specs are
	// replaced by those of the original.
	Fork(ctx context.Context, id string, specs []Spec) ([]Sandbox, error)
}

// MaxForks is the maximum number of forks in one call.
const MaxForks = 100

// Differ lists what a sandbox has changed on its disk.
type Differ interface {
	// Diff compares the disk with what it started from: the image, the snapshot or, in a
	// fork, the original at that time. It returns at most limit changes, ordered by
	// path. While the sandbox runs the result may be inconsistent.
	Diff(ctx context.Context, id string, limit int) (Diff, error)
}

// Diff is what changed on a disk.
type Diff struct {
	Changes []Change `json:"changes"`
	// Truncated says that there are more changes.
	Truncated bool `json:"truncated,omitempty"`
}

// Change is one changed path. A folder is listed if it was added or removed. The content
// of a new folder is listed, too; that of a removed one is not.
type Change struct {
	Path string     `json:"path"`
	Kind ChangeKind `json:"kind"`
	Dir  bool       `json:"dir,omitempty"`
	Size int64      `json:"size,omitempty"` // of an existing file
}

// ChangeKind is how a path changed.
type ChangeKind string

// The kinds of change. A file that was written with the same content is Modified, too.
const (
	Added    ChangeKind = "added"
	Modified ChangeKind = "modified"
	Removed  ChangeKind = "deleted"
)

// Volumer manages volumes. Those that a Spec names are created if they do not exist.
type Volumer interface {
	// Volumes lists the volumes of an owner, or of all if owner is empty, with their
	// sizes, ordered by name.
	Volumes(ctx context.Context, owner string) ([]VolumeInfo, error)

	// CreateVolume creates an empty volume. ErrConflict: the owner has one of that name.
	CreateVolume(ctx context.Context, owner, name string) (VolumeInfo, error)

	// DeleteVolume removes a volume with its content. ErrState: a sandbox, in whatever
	// state, has it in its Spec.
	DeleteVolume(ctx context.Context, owner, name string) error
}

// VolumeInfo describes a volume.
type VolumeInfo struct {
	Name    string    `json:"name"`
	Owner   string    `json:"owner,omitempty"`
	Size    int64     `json:"size"`            // bytes on disk
	Limit   int64     `json:"limit,omitempty"` // maximum size in bytes; 0 is none
	Created time.Time `json:"created"`
	// Sandboxes are the IDs of the sandboxes that have it in their Spec.
	Sandboxes []string `json:"sandboxes"`
}

// Exporter writes the disk of a sandbox for use elsewhere.
type Exporter interface {
	// Export writes it as an OCI image in a tar archive, with the command of the Spec or
	// image, but without the environment of the Spec, which may hold secrets. A running
	// sandbox is suspended only while its disk is copied, not while it is written.
	Export(ctx context.Context, id string, w io.Writer) error
}

// Importer stores images that callers bring along. A Spec names them by their
// reference, like images of a registry.
type Importer interface {
	// ImportImage stores the image in the tar archive at path, as Export and
	// docker save write it, under ref. It replaces an image of that reference. The
	// Budget of ctx is asked before bytes are stored; an import that fails keeps none.
	ImportImage(ctx context.Context, path, ref string) error

	// Images lists the stored images whose full reference starts with prefix,
	// ordered by reference.
	Images(ctx context.Context, prefix string) ([]ImageInfo, error)

	// DeleteImage removes a stored image. Sandboxes and snapshots that were made
	// from it keep working.
	DeleteImage(ctx context.Context, ref string) error
}

// ImageInfo describes a stored image.
type ImageInfo struct {
	Ref     string // in full, with registry and tag
	Size    int64  // of its files, in bytes
	Created time.Time
}

// ImageCounter counts what images take for an owner.
type ImageCounter interface {
	// ImageUse is the number of bytes of the images that the owner's sandboxes and
	// snapshots are based on and of those whose full reference starts with prefix.
	// What they share counts once.
	ImageUse(ctx context.Context, owner, prefix string) (int64, error)
}

// VolumeUsers lists the IDs of the sandboxes that have a volume in their spec.
func VolumeUsers(boxes []Sandbox, owner, name string) []string {
	ids := []string{}
	for _, sb := range boxes {
		if sb.Spec.Owner == owner && slices.ContainsFunc(sb.Spec.Volumes, func(v Volume) bool { return v.Name == name }) {
			ids = append(ids, sb.ID)
		}
	}
	return ids
}
