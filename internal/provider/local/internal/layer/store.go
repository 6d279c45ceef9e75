// Package layer stores the layers of disks, one folder each.
//
// It copies layers for snapshots and forks: atomically and without additional disk space if the folders are subvolumes of
// btrfs, otherwise file by file. If the state folder is on another filesystem, root creates a btrfs in a file. The
// package owns that file, its loop device and its mount. It removes layers that are not held.
package layer

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/provider/local/internal/tree"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// Config configures a Store.
type Config struct {
	// Dir is the state folder.
	Dir string
	// ImageSize bounds the filesystem that is created in a file; default: nine tenths of the free space. NoImage creates
	// none.
	ImageSize int64
	NoImage   bool
}

// Store stores layers.
type Store struct {
	dir       string
	sandboxes string
	volumes   string
	subvol    bool
	image     string   // the file with the filesystem; empty if there is none
	mount     *os.File // of Attach: the root of the filesystem, which is mounted at no path
	sysfs     string   // reports the usage of a btrfs
	why       error    // why layers are not subvolumes
	groups    string   // folder of the quota groups in /sys; empty without quotas
	noQuota   error    // why there are no quotas

	mu     sync.Mutex
	refs   map[string]int  // how often a layer is held
	owners map[uint64]bool // existing quota groups of owners
}

// WorkName is the work folder of overlays in each layer. It is not copied.
const WorkName = "work"

const (
	minImage      = 1 << 30   // minimum size
	keepFree      = 256 << 20 // minimum free space of the filesystem that contains the image
	imageName     = "disk.img"
	storeName     = "disk"
	sandboxesName = "sandboxes"
	volumesName   = "volumes"
	newMark       = ".new" // of an unfinished image
	layerBytes    = 8
)

// Open opens or creates the layers of a state folder, and the folder for sandboxes; see Sandboxes.
func Open(cfg Config) (*Store, error) {
	s, err := openLayers(cfg)
	if err != nil {
		return nil, err
	}
	s.sandboxes, s.volumes = filepath.Join(cfg.Dir, sandboxesName), filepath.Join(cfg.Dir, volumesName)
	if s.image != "" {
		s.sandboxes, s.volumes = filepath.Join(s.dir, sandboxesName), filepath.Join(s.dir, volumesName)
	}
	if err := errors.Join(tree.MakePrivate(s.sandboxes), tree.MakePrivate(s.volumes)); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// Sandboxes returns the folder that contains the folders of sandboxes. It is in the filesystem of the layers: after a
// power failure, a record and its disk are consistent, and small files are ten times cheaper than on other filesystems.
func (s *Store) Sandboxes() string { return s.sandboxes }

// Volumes returns the folder for volumes. It is on a filesystem with quotas, if there is one.
func (s *Store) Volumes() string { return s.volumes }

// Subvolumes reports whether layers can be copied atomically, and if not, why.
func (s *Store) Subvolumes() (bool, error) { return s.subvol, s.why }

func openLayers(cfg Config) (*Store, error) {
	s := &Store{dir: filepath.Join(cfg.Dir, storeName), refs: map[string]int{}, owners: map[uint64]bool{}}
	if err := tree.MakePrivate(s.dir); err != nil {
		return nil, err
	}
	image := filepath.Join(cfg.Dir, imageName)
	if err := s.removeUnfinished(image); err != nil {
		return nil, err
	}
	_, err := os.Lstat(image)
	switch {
	case os.Geteuid() != 0:
		s.why = errors.New("not running as root")
		return s, nil
	case err == nil:
		s.image = image
		if !isBtrfs(s.dir) {
			// It contains disks, so there is no fallback to plain folders.
			err = mountImage(image, s.dir)
		}
	case isBtrfs(s.dir):
		err = nil
	case cfg.NoImage:
		s.why = errors.New("the configuration disables the filesystem in a file")
		return s, nil
	default:
		if s.why = s.makeImage(image, cfg.ImageSize); s.why == nil {
			s.image = image
		}
		err = nil
	}
	if err == nil && s.why == nil {
		s.subvol, s.sysfs = true, findUsage(s.dir)
		s.noQuota = s.enableQuota()
		err = os.Chmod(s.dir, 0o700)
	}
	return s, err
}

func isBtrfs(dir string) bool {
	var st unix.Statfs_t
	return unix.Statfs(dir, &st) == nil && st.Type == unix.BTRFS_SUPER_MAGIC
}

// makeImage creates and mounts a filesystem in a sparse file. It fails if the folder contains layers already.
func (s *Store) makeImage(image string, size int64) error {
	if used, err := os.ReadDir(s.dir); err != nil || len(used) > 0 {
		return errors.Join(errors.New("existing layers are plain folders"), err)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(s.dir, &st); err != nil {
		return err
	}
	if free := int64(st.Bavail) * st.Bsize; size == 0 {
		size = free / 10 * 9
	}
	if size = size &^ 4095; size < minImage {
		return fmt.Errorf("a filesystem of %d bytes is too small; free at least %d", size, int64(minImage))
	}
	tmp := image + newMark
	f, err := os.OpenFile(tmp, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer os.Remove(tmp)
	err = f.Truncate(size)
	if err == nil {
		err = writeSeed(f)
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	// Rename it after the kernel has accepted it.
	if err := mountImage(tmp, s.dir); err != nil {
		return err
	}
	if err := os.Rename(tmp, image); err != nil {
		return errors.Join(err, unix.Unmount(s.dir, unix.MNT_DETACH))
	}
	return nil
}

// removeUnfinished removes the unfinished image of a killed hub. It may be mounted, but is empty.
func (s *Store) removeUnfinished(image string) error {
	tmp := image + newMark
	if !tree.Exists(tmp) {
		return nil
	}
	if !tree.Exists(image) && isBtrfs(s.dir) && !isBtrfs(filepath.Dir(s.dir)) {
		if err := unix.Unmount(s.dir, 0); err != nil {
			return fmt.Errorf("unmount %s: %w", s.dir, err)
		}
	}
	return os.Remove(tmp)
}

// Close unmounts the filesystem. Running sandboxes keep it mounted without a path, and the next hub finds it by its loop
// device.
func (s *Store) Close() error {
	if s.mount != nil {
		return s.mount.Close()
	}
	if s.image == "" {
		return nil
	}
	err := unix.Unmount(s.dir, unix.MNT_DETACH)
	if errors.Is(err, unix.EINVAL) {
		err = nil // not mounted
	}
	return err
}

// CheckSpace returns ErrExhausted when the filesystem that contains the image is nearly full. If it were full, all
// sandboxes would fail.
func (s *Store) CheckSpace() error {
	if s.image == "" {
		return nil
	}
	var st unix.Statfs_t
	if err := unix.Statfs(s.image, &st); err != nil {
		return err
	}
	if int64(st.Bavail)*st.Bsize >= keepFree {
		return nil
	}
	return fmt.Errorf("%w: the filesystem of the state folder is nearly full; delete sandboxes or snapshots, or "+
		"free disk space", sandbox.ErrExhausted)
}

// NewName returns an unused name for a layer.
func NewName() string {
	var b [layerBytes]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// IsName reports whether a name is a valid name of a layer.
func IsName(name string) bool {
	b, err := hex.DecodeString(name)
	return err == nil && len(b) == layerBytes
}

// Path returns the path of a layer, or of a file in it.
func (s *Store) Path(layer string, elem ...string) string {
	return filepath.Join(append([]string{s.dir, layer}, elem...)...)
}

// Create creates an empty layer.
func (s *Store) Create(layer string) error {
	if s.subvol {
		return btrfsNamed(s.dir, btrfsSubvolCreate, layer)
	}
	return os.Mkdir(s.Path(layer), 0o755)
}

// Copy creates a read-only copy of a layer.
func (s *Store) Copy(ctx context.Context, from, to string) error {
	var err error
	if s.subvol {
		err = snapshotSubvol(s.Path(from), s.dir, to)
	} else {
		err = tree.Copy(ctx, s.Path(from), s.Path(to), WorkName)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("copy disk: %w", err), s.remove(to))
	}
	return nil
}

// remove deletes a layer, if it exists.
func (s *Store) remove(layer string) error {
	if s.subvol {
		err := btrfsNamed(s.dir, btrfsSnapDestroy, layer)
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			return nil
		}
	}
	return tree.Remove(s.Path(layer))
}

// names lists all layers.
func (s *Store) names() ([]string, error) {
	entries, err := os.ReadDir(s.dir)
	var names []string
	for _, e := range entries {
		if e.Name() != sandboxesName && e.Name() != volumesName {
			names = append(names, e.Name())
		}
	}
	return names, err
}
