// Package disk keeps the disks of sandboxes, and what is made of them: snapshots,
// volumes, comparisons and images.
//
// A disk is a stack of layers over the host's own programs or an unpacked image. The
// package owns the layers, the base that sandboxes without an image start from, and
// the folders of snapshots and volumes. It knows nothing of what runs: its callers
// make sure that a disk stands still while it is copied.
package disk

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/provider/local/internal/image"
	"github.com/cove-sandbox/cove/internal/provider/local/internal/layer"
	"github.com/cove-sandbox/cove/internal/provider/local/internal/tree"
	"github.com/cove-sandbox/cove/internal/system/isolate/hostroot"
)

// IDRange is how many user IDs a sandbox has.
const IDRange = 65536

// Config says where disks are kept.
type Config struct {
	// Dir is the state folder.
	Dir string
	// Layers and Images are closed by the Store. Images is nil if there are none.
	Layers *layer.Store
	Images *image.Store
	// FirstID is the host's user ID of root inside, where owners cannot be mapped.
	FirstID uint32
	// Hidden lists paths that are mounted over in every sandbox. They are no part of
	// a comparison.
	Hidden []string
	// ImageLayers lists the folders of image layers that the disks of an owner's sandboxes
	// and snapshots are based on. It is required if there are Images.
	ImageLayers func(owner string) ([]string, error)
	Log         *slog.Logger
}

// Store keeps disks. It cannot be used before Prepare.
type Store struct {
	cfg     Config
	layers  *layer.Store
	images  *image.Store
	mapping Mapping
	root    hostroot.Root
}

// Mapping says which filesystems can translate owners: that of the state folder
// and that of the host's programs.
type Mapping struct{ State, Host bool }

const baseName = "base"

// New returns a store. It has no effects.
func New(cfg Config) *Store { return &Store{cfg: cfg, layers: cfg.Layers, images: cfg.Images} }

// Prepare creates the base of new sandboxes for a mapping, and uses both from now on.
func (s *Store) Prepare(m Mapping) (err error) {
	s.mapping = m
	s.root, err = hostroot.Build(filepath.Join(s.cfg.Dir, baseName), s.owner())
	return err
}

// Close closes images and layers.
func (s *Store) Close() (err error) {
	if s.images != nil {
		err = s.images.Close()
	}
	return errors.Join(err, s.layers.Close())
}

// Mapping returns what Prepare was given.
func (s *Store) Mapping() Mapping { return s.mapping }

// Sandboxes is the folder that holds a folder for each sandbox.
func (s *Store) Sandboxes() string { return s.layers.Sandboxes() }

// Subvolumes reports whether a disk can be copied in one step, and if not, why.
func (s *Store) Subvolumes() (bool, error) { return s.layers.Subvolumes() }

// Usage is how much of the filesystem of all disks is used.
func (s *Store) Usage() tree.Size { return s.layers.Usage() }

// CheckSpace returns ErrExhausted when there is no room for another disk.
func (s *Store) CheckSpace() error { return s.layers.CheckSpace() }

// SyncAll writes all disks to the storage device if they have their own filesystem;
// ok is false if they have not.
func (s *Store) SyncAll() (ok bool, err error) { return s.layers.SyncAll() }

// owner is the host ID that owns, on disk, what root inside owns; -1 without root.
func (s *Store) owner() int {
	switch {
	case os.Geteuid() != 0:
		return -1
	case s.mapping.State:
		return 0
	default:
		return int(s.cfg.FirstID)
	}
}

// Chown gives a path to a user inside.
func (s *Store) Chown(path string, id int) error {
	owner := s.owner()
	if owner < 0 {
		return nil
	}
	return os.Lchown(path, owner+id, owner+id)
}

// MakeFolder creates a folder for a user inside. Whatever our umask is, it has the
// usual mode.
func (s *Store) MakeFolder(path string, id int) error {
	if err := errors.Join(os.Mkdir(path, 0o755), settle(path, 0o755, s.owner(), id)); err != nil {
		return fmt.Errorf("create sandbox folder: %w", err)
	}
	return nil
}

// settle gives a new file or folder its mode and its owner inside. It has both already
// unless our umask is unusual or owners are not translated, and to ask for that is
// cheaper than to set it: each create does this dozens of times. first is that of
// Store.owner.
func settle(path string, perm os.FileMode, first, id int) error {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return &os.PathError{Op: "lstat", Path: path, Err: err}
	}
	var err error
	if os.FileMode(st.Mode)&0o7777 != perm {
		err = os.Chmod(path, perm)
	}
	if owner := first + id; first >= 0 && (st.Uid != uint32(owner) || st.Gid != uint32(owner)) {
		err = errors.Join(err, os.Lchown(path, owner, owner))
	}
	return err
}

// RemoveUnused removes layers that nobody holds, and bases that neither a given disk
// nor new sandboxes start from.
func (s *Store) RemoveUnused(used []Disk) error {
	errs := []error{s.layers.RemoveUnheld()}
	dir := filepath.Join(s.cfg.Dir, baseName)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	for _, e := range entries {
		isUsed := slices.ContainsFunc(used, func(d Disk) bool { return d.Base == e.Name() })
		if !isUsed && e.Name() != filepath.Base(s.root.Base) {
			errs = append(errs, tree.Remove(filepath.Join(dir, e.Name())))
		}
	}
	return errors.Join(errs...)
}
