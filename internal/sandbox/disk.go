package sandbox

import (
	"context"
	"io"
	"time"
)

// What a provider can do with disks. Snapshots and volumes belong to an owner,
// and their names are unique among that owner's; a foreign one is as good as
// none. Unless said otherwise the promises of Provider hold here too.

// Snapshotter keeps a sandbox's disk as it is at one moment.
//
// A snapshot stands for itself: it needs neither the sandbox it was taken of nor
// the snapshot that one was made from, and those can be deleted in any order
// while sandboxes stand on them. What a disk alone used is free when the last
// that used it is deleted. Volumes, memory and processes are not part of it.
type Snapshotter interface {
	// Snapshot takes one, for the sandbox's owner, of a sandbox in any settled
	// state. Of a running one everything inside stands still meanwhile, so that
	// all it had written is in, and nothing half; it then goes on, undisturbed
	// but for the pause. A provider that cannot pause may refuse a running one
	// with ErrState. ErrConflict: the owner has a snapshot of that name.
	Snapshot(ctx context.Context, id, name string) (Snapshot, error)

	// Snapshots lists an owner's, oldest first; of all owners if owner is empty.
	Snapshots(ctx context.Context, owner string) ([]Snapshot, error)

	// DeleteSnapshot removes a snapshot; what was made from it stays as it is.
	DeleteSnapshot(ctx context.Context, owner, name string) error

	// Rollback puts the disk back to one of the owner's snapshots, in place: ID,
	// name and all of the Spec stay. Everything inside is ended at once, and the
	// server is started on the snapshot's disk, whatever the state was before. If
	// that start fails the sandbox is Stopped, on the snapshot's disk. ErrInvalid:
	// the snapshot is of a sandbox with another image.
	Rollback(ctx context.Context, id, name string) error
}

// Snapshot is a disk that is kept. Spec.Snapshot and Rollback name it.
type Snapshot struct {
	Name  string `json:"name"`
	Owner string `json:"owner,omitempty"`
	// Sandbox is the ID of the one it was taken of, which may be gone.
	Sandbox string `json:"sandbox"`
	// Parent is the snapshot that that sandbox's disk had started from, if any.
	Parent string `json:"parent,omitempty"`
	Image  string `json:"image,omitempty"`
	// Size is what the sandbox had written since its own start from an image or
	// snapshot, in bytes. The disk it really uses may be shared and so be less.
	Size    int64     `json:"size"`
	Created time.Time `json:"created"`
}

// Forker makes running copies of a sandbox.
type Forker interface {
	// Fork makes one sandbox for each spec, on the disk that the given one has at
	// this moment, as by a Snapshot that nobody sees, and returns them Running, in
	// that order: all or, on any error, none. Programs are started afresh. The
	// specs are new sandboxes' in all but Image and Snapshot, which are the
	// original's.
	Fork(ctx context.Context, id string, specs []Spec) ([]Sandbox, error)
}

// MaxForks is how many forks one call may ask for.
const MaxForks = 100

// Differ tells what a sandbox has changed on its disk.
type Differ interface {
	// Diff compares the disk with what it started from: the image, the snapshot
	// or, in a fork, the original at that moment. It returns at most limit
	// changes, in the order of their paths. While the sandbox runs it is only as
	// exact as a look at a running machine can be.
	Diff(ctx context.Context, id string, limit int) (Diff, error)
}

// Diff is what changed on a disk.
type Diff struct {
	Changes []Change `json:"changes"`
	// Truncated says that there are more.
	Truncated bool `json:"truncated,omitempty"`
}

// Change is one file, folder or other thing with a path that changed. A folder
// is told when it is new or gone, its content then only as far as it is new.
type Change struct {
	Path string     `json:"path"`
	Kind ChangeKind `json:"kind"`
	Dir  bool       `json:"dir,omitempty"`
	Size int64      `json:"size,omitempty"` // of a file that is there
}

// ChangeKind is how something changed.
type ChangeKind string

// The kinds of change. Touched, but with the same content, is Modified too.
const (
	Added    ChangeKind = "added"
	Modified ChangeKind = "modified"
	Removed  ChangeKind = "deleted"
)

// Volumer keeps volumes. Those that a Spec names are made if they do not exist.
type Volumer interface {
	// Volumes lists an owner's with their sizes, by name; of all owners if owner
	// is empty.
	Volumes(ctx context.Context, owner string) ([]VolumeInfo, error)

	// CreateVolume makes an empty one. ErrConflict: the owner has it already.
	CreateVolume(ctx context.Context, owner, name string) (VolumeInfo, error)

	// DeleteVolume removes it with all that is in it. ErrState: a sandbox, in
	// whatever state, has it in its Spec.
	DeleteVolume(ctx context.Context, owner, name string) error
}

// VolumeInfo is a volume that exists.
type VolumeInfo struct {
	Name    string    `json:"name"`
	Owner   string    `json:"owner,omitempty"`
	Size    int64     `json:"size"` // bytes on disk
	Created time.Time `json:"created"`
	// Sandboxes are the IDs of those that have it in their Spec.
	Sandboxes []string `json:"sandboxes"`
}

// Exporter writes a sandbox's disk for use elsewhere.
type Exporter interface {
	// Export writes it as an OCI image in a tar archive, with the command of the
	// Spec or image, but without the environment of the Spec, where there may be
	// secrets. A running sandbox stands still only while its disk is taken, not
	// while it is written.
	Export(ctx context.Context, id string, w io.Writer) error
}
