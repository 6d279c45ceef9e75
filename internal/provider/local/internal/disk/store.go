// Package disk owns the disks of sandboxes, with snapshots, volumes, comparisons and exports.
//
// A disk is a stack of layers over the host's programs or an unpacked image. The package owns the layers, the base of
// sandboxes without an image, and the folders of snapshots and volumes. Callers make sure that a disk does not change
// while it is copied.
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

// IDRange is the number of user IDs of a sandbox.
const IDRange = 65536

// Config configures a Store.
type Config struct {
	// Dir is the state folder.
	Dir string
	// Layers and Images are closed by the Store. Images is optional.
	Layers *layer.Store
	Images *image.Store
	// FirstID is the user ID of root inside on the host, without ID-mapped mounts.
	FirstID uint32
	// Hidden lists paths that other mounts cover in every sandbox. Comparisons exclude them.
	Hidden []string
	// ImageLayers lists the image layers that an owner's sandboxes and snapshots use. It is required with Images.
	ImageLayers func(owner string) ([]string, error)
	Log         *slog.Logger
}

// Store stores disks. Call Prepare first.
type Store struct {
	cfg     Config
	layers  *layer.Store
	images  *image.Store
	mapping Mapping
	root    hostroot.Root
}

// Mapping describes which filesystems support ID-mapped mounts: that of the state folder, and that of the host's
// programs.
type Mapping struct{ State, Host bool }

const baseName = "base"

// New returns a store. It has no effects.
func New(cfg Config) *Store { return &Store{cfg: cfg, layers: cfg.Layers, images: cfg.Images} }

// Prepare creates the base of new sandboxes for a mapping.
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

// Mapping returns the argument of Prepare.
func (s *Store) Mapping() Mapping { return s.mapping }

// Sandboxes returns the folder that contains the folders of sandboxes.
func (s *Store) Sandboxes() string { return s.layers.Sandboxes() }

// Subvolumes reports whether disks can be copied atomically, and if not, why.
func (s *Store) Subvolumes() (bool, error) { return s.layers.Subvolumes() }

// Usage returns the used space of the filesystem of all disks.
func (s *Store) Usage() tree.Size { return s.layers.Usage() }

// CheckSpace returns ErrExhausted if there is no space for another disk.
func (s *Store) CheckSpace() error { return s.layers.CheckSpace() }

// SyncAll synchronizes all disks if they have their own filesystem; otherwise ok is false.
func (s *Store) SyncAll() (ok bool, err error) { return s.layers.SyncAll() }

// owner returns the ID on disk of root inside; -1 without root.
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

// Chown changes the owner of a path to a user inside.
func (s *Store) Chown(path string, id int) error {
	owner := s.owner()
	if owner < 0 {
		return nil
	}
	return os.Lchown(path, owner+id, owner+id)
}

// MakeFolder creates a folder for a user inside, with mode 0755 independently of the umask.
func (s *Store) MakeFolder(path string, id int) error {
	if err := errors.Join(os.Mkdir(path, 0o755), setOwner(path, 0o755, s.owner(), id)); err != nil {
		return fmt.Errorf("create sandbox folder: %w", err)
	}
	return nil
}

// setOwner sets the mode and the owner inside of a new file or folder, if they differ. They usually do not, and checking
// is cheaper than setting them dozens of times per create. First is the result of Store.owner.
func setOwner(path string, perm os.FileMode, first, id int) error {
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

// RemoveUnused removes layers that are not held, and bases that are not used by the given disks or new sandboxes.
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
