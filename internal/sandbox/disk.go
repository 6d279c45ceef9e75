package sandbox

import (
	"context"
	"io"
	"slices"
	"time"
)

// Optional abilities of providers for disks. Snapshots and volumes belong to an owner, and their names are
// unique per owner. Unless noted otherwise, the guarantees of Provider apply.

// Snapshotter saves the disk of a sandbox.
//
// A snapshot is independent of its sandbox and of the snapshot on which that is based. All can be deleted in
// any order while sandboxes use them. Disk space is freed when its last user is deleted. Volumes, memory
// and processes are not part of a snapshot.
type Snapshotter interface {
	// Snapshot takes a snapshot for the sandbox's owner, in any state except Creating and Deleting. A
	// running sandbox is suspended meanwhile, so that the snapshot contains all earlier writes
	// completely. A provider that cannot pause may return ErrState for a running sandbox. ErrConflict: the
	// owner has a snapshot with that name.
	Snapshot(ctx context.Context, id, name string) (Snapshot, error)

	// Snapshots lists the snapshots of an owner, or of all if owner is empty, oldest
	// first.
	Snapshots(ctx context.Context, owner string) ([]Snapshot, error)

	// DeleteSnapshot removes a snapshot. Sandboxes created from it do not change.
	DeleteSnapshot(ctx context.Context, owner, name string) error

	// Rollback resets the disk to one of the owner's snapshots, in place: ID, name and Spec are kept. It
	// kills all processes and starts the server on the snapshot's disk, in any state. If that start
	// fails, the sandbox is Stopped, on the snapshot's disk. ErrInvalid: the snapshot is of a sandbox
	// with another image.
	Rollback(ctx context.Context, id, name string) error
}

// Snapshot describes a snapshot. Spec.Snapshot and Rollback refer to its name.
type Snapshot struct {
	Name  string `json:"name"`
	Owner string `json:"owner,omitempty"`
	// Sandbox is the ID of its sandbox, which may be deleted.
	Sandbox string `json:"sandbox"`
	// Parent is the snapshot on which the sandbox's disk was based, if any.
	Parent string `json:"parent,omitempty"`
	Image  string `json:"image,omitempty"`
	// Size is the number of bytes that the sandbox has written on top of its image or snapshot. The
	// snapshot can use less disk space, because data is shared.
	Size    int64     `json:"size"`
	Created time.Time `json:"created"`
	// Layer: it was taken by SaveLayer.
	Layer bool `json:"layer,omitempty"`
}

// Layerer saves the disk of a sandbox repeatedly while a template is built in it.
type Layerer interface {
	// SaveLayer is Snapshot with Layer set, for a running sandbox, which continues to run. Its processes can
	// have ended. Size is what was written since the last layer of the sandbox, or since its creation.
	SaveLayer(ctx context.Context, id, name string) (Snapshot, error)
}

// Imager describes images.
type Imager interface {
	// ResolveImage returns the image of a reference for an owner. It pulls a missing image and calls the
	// Budget of ctx for it. With fresh, it asks the registry for the current image of a tag. An empty reference is
	// the root filesystem of sandboxes without an image: its Digest changes with the content.
	ResolveImage(ctx context.Context, owner, ref string, fresh bool) (ImageConfig, error)
}

// ImageConfig describes an image.
type ImageConfig struct {
	Digest  string // of its manifest
	Env     map[string]string
	Workdir string
	User    string // name or ID, with an optional group after a colon
}

// Forker creates running copies of a sandbox.
type Forker interface {
	// Fork creates one sandbox for each spec with the current disk of the original, and returns them
	// Running, in that order: all or, after any error, none. Processes are not copied. Image and Snapshot
	// of the specs are replaced by those of the original.
	Fork(ctx context.Context, id string, specs []Spec) ([]Sandbox, error)
}

// MaxForks is the maximum number of forks in one call.
const MaxForks = 100

// Differ lists the changes of a sandbox on its disk.
type Differ interface {
	// Diff compares the disk with its base: the image, the snapshot or, for a fork, the original at that
	// time. It returns at most limit changes, ordered by path. While the sandbox runs, the result can be
	// inconsistent.
	Diff(ctx context.Context, id string, limit int) (Diff, error)
}

// Diff is a list of changes on a disk.
type Diff struct {
	Changes []Change `json:"changes"`
	// Truncated is set if there are more changes.
	Truncated bool `json:"truncated,omitempty"`
}

// Change is one changed path. A folder is listed if it was added or removed. The content of a new folder is
// listed, but not that of a removed one.
type Change struct {
	Path string     `json:"path"`
	Kind ChangeKind `json:"kind"`
	Dir  bool       `json:"dir,omitempty"`
	Size int64      `json:"size,omitempty"` // of an existing file
}

// ChangeKind is the kind of a change.
type ChangeKind string

// The kinds of change. A file that was rewritten with the same content is Modified.
const (
	Added    ChangeKind = "added"
	Modified ChangeKind = "modified"
	Removed  ChangeKind = "deleted"
)

// Volumer manages volumes. Volumes in a Spec are created if they do not exist.
type Volumer interface {
	// Volumes lists the volumes of an owner, or of all if owner is empty, with their
	// sizes, ordered by name.
	Volumes(ctx context.Context, owner string) ([]VolumeInfo, error)

	// CreateVolume creates an empty volume. ErrConflict: the owner has one with that name.
	CreateVolume(ctx context.Context, owner, name string) (VolumeInfo, error)

	// DeleteVolume removes a volume with its content. ErrState: a sandbox in any state has it in its
	// Spec.
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
	// Export writes the disk as an OCI image in a tar archive, with the command of the Spec or image, but
	// without the environment of the Spec, which can contain secrets. A running sandbox is suspended
	// only while its disk is copied, not while the archive is written.
	Export(ctx context.Context, id string, w io.Writer) error
}

// Importer stores images of callers. A Spec refers to them like to images of a registry.
type Importer interface {
	// ImportImage stores the image in the tar archive at path, in the format of Export and docker save,
	// under ref. It replaces an image with that reference. It calls the Budget of ctx before it stores
	// bytes; a failed import stores nothing.
	ImportImage(ctx context.Context, path, ref string) error

	// Images lists the stored images whose full reference starts with prefix,
	// ordered by reference.
	Images(ctx context.Context, prefix string) ([]ImageInfo, error)

	// DeleteImage removes a stored image. Sandboxes and snapshots that were created from it keep
	// working.
	DeleteImage(ctx context.Context, ref string) error
}

// ImageInfo describes a stored image.
type ImageInfo struct {
	Ref     string // full, with registry and tag
	Size    int64  // of its files, in bytes
	Created time.Time
}

// ImageCounter measures the images of an owner.
type ImageCounter interface {
	// ImageUse is the size in bytes of the images on which the owner's sandboxes and snapshots are based,
	// and of those whose full reference starts with prefix. Shared data counts once.
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
