package local

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/sandbox"
)

// store keeps layers: trees of files by which sandboxes' disks grow, one folder
// each. It can copy a layer that is being written, which is what everything with
// snapshots stands on: in one step and without using more disk if the folders are
// subvolumes of btrfs, else file by file. Where the state folder is on another
// filesystem, root makes a btrfs of its own in a file, which the kernel can mount.
type store struct {
	dir    string
	boxes  string // where the sandboxes' own folders are
	subvol bool
	image  string // the file, if it is ours
	sysfs  string // tells what is used, of subvolumes
	why    error  // why layers are no subvolumes
}

const (
	minImage   = 1 << 30   // a smaller one is not worth it
	keepFree   = 256 << 20 // of the filesystem that holds an image
	imageName  = "disk.img"
	storeName  = "disk"
	boxesName  = "sandboxes"
	newMark    = ".new" // of an image that is not finished
	layerBytes = 8
)

// openStore makes or finds the layers of a state folder, and the folder of the
// sandboxes' own: in our own filesystem, if there is one. A record then lives and
// dies with the disk that it tells of, and a dozen small files for each sandbox
// cost a tenth of what they cost on the usual filesystem of a machine.
func openStore(cfg Config) (*store, error) {
	s, err := openLayers(cfg)
	if err != nil {
		return nil, err
	}
	s.boxes = filepath.Join(cfg.Dir, boxesName)
	if s.image != "" {
		s.boxes = filepath.Join(s.dir, boxesName)
	}
	return s, makePrivate(s.boxes)
}

// makePrivate makes a folder for files that belong to the users they have inside,
// and may be setuid: nobody else on this machine may come near them.
func makePrivate(dir string) error {
	return errors.Join(os.MkdirAll(dir, 0o700), os.Chmod(dir, 0o700))
}

func openLayers(cfg Config) (*store, error) {
	s := &store{dir: filepath.Join(cfg.Dir, storeName)}
	if err := makePrivate(s.dir); err != nil {
		return nil, err
	}
	image := filepath.Join(cfg.Dir, imageName)
	if err := s.unmake(image); err != nil {
		return nil, err
	}
	_, err := os.Lstat(image)
	switch {
	case rootless():
		s.why = errors.New("not run as root")
		return s, nil
	case err == nil:
		s.image = image
		if !onBtrfs(s.dir) {
			// What is in it cannot be done without: an error, not a lesser way.
			err = mountImage(image, s.dir)
		}
	case onBtrfs(s.dir):
		err = nil
	case cfg.NoImage:
		s.why = errors.New("the provider is told not to make a filesystem of its own")
		return s, nil
	default:
		if s.why = s.makeImage(image, cfg.ImageSize); s.why == nil {
			s.image = image
		}
		err = nil
	}
	if err == nil && s.why == nil {
		s.subvol, s.sysfs = true, findUsage(s.dir)
		err = os.Chmod(s.dir, 0o700)
	}
	return s, err
}

func onBtrfs(dir string) bool {
	var fs unix.Statfs_t
	return unix.Statfs(dir, &fs) == nil && fs.Type == unix.BTRFS_SUPER_MAGIC
}

// makeImage makes and mounts a filesystem in a file, which takes disk only as it
// fills. A folder that has layers already stays as it is.
func (s *store) makeImage(image string, size int64) error {
	if used, err := os.ReadDir(s.dir); err != nil || len(used) > 0 {
		return errors.Join(errors.New("its layers are folders already"), err)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(s.dir, &fs); err != nil {
		return err
	}
	if free := int64(fs.Bavail) * fs.Bsize; size == 0 {
		size = free / 10 * 9
	}
	if size = size &^ 4095; size < minImage {
		return fmt.Errorf("a filesystem of %d bytes is too small", size)
	}
	tmp := image + newMark
	f, err := os.OpenFile(tmp, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer os.Remove(tmp)
	err = f.Truncate(size)
	if err == nil {
		err = sow(f)
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	// Under its name only when the kernel has accepted it.
	if err := mountImage(tmp, s.dir); err != nil {
		return err
	}
	if err := os.Rename(tmp, image); err != nil {
		return errors.Join(err, unix.Unmount(s.dir, unix.MNT_DETACH))
	}
	return nil
}

// unmake removes an image that a killed hub did not finish. It may be mounted, but
// nothing is in it yet.
func (s *store) unmake(image string) error {
	tmp := image + newMark
	if !exists(tmp) {
		return nil
	}
	if !exists(image) && onBtrfs(s.dir) && !onBtrfs(filepath.Dir(s.dir)) {
		if err := unix.Unmount(s.dir, 0); err != nil {
			return fmt.Errorf("unmount %s: %w", s.dir, err)
		}
	}
	return os.Remove(tmp)
}

// close unmounts what is ours. Sandboxes that go on hold files of it, and a child
// of ours does until it runs its program: the filesystem stays for them, out of
// sight, and the next hub finds it by its device.
func (s *store) close() error {
	if s.image == "" {
		return nil
	}
	err := unix.Unmount(s.dir, unix.MNT_DETACH)
	if errors.Is(err, unix.EINVAL) {
		err = nil // it is gone
	}
	return err
}

// room refuses more when the filesystem that holds the image is nearly full: one
// that cannot be written any more breaks every sandbox in it.
func (s *store) room() error {
	if s.image == "" {
		return nil
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(s.image, &fs); err != nil {
		return err
	}
	if int64(fs.Bavail)*fs.Bsize >= keepFree {
		return nil
	}
	return fmt.Errorf("%w: the filesystem of the state folder is nearly full; delete sandboxes or snapshots, or make room", sandbox.ErrExhausted)
}

func newLayer() string {
	var b [layerBytes]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

func (s *store) path(layer string, elem ...string) string {
	return filepath.Join(append([]string{s.dir, layer}, elem...)...)
}

// create makes an empty layer.
func (s *store) create(layer string) error {
	if s.subvol {
		return withName(s.dir, btrfsSubvolCreate, layer)
	}
	return os.Mkdir(s.path(layer), 0o755)
}

// copy makes a layer that is, for good, what another is now.
func (s *store) copy(ctx context.Context, from, to string) error {
	var err error
	if s.subvol {
		err = snapshotSubvol(s.path(from), s.dir, to)
	} else {
		err = copyTree(ctx, s.path(from), s.path(to))
	}
	if err != nil {
		return errors.Join(fmt.Errorf("copy disk: %w", err), s.remove(to))
	}
	return nil
}

// remove deletes a layer, if it exists.
func (s *store) remove(layer string) error {
	if s.subvol {
		err := withName(s.dir, btrfsSnapDestroy, layer)
		if err == nil || notThere(err) {
			return nil
		}
	}
	return removeTree(s.path(layer))
}

// layers lists what is there.
func (s *store) layers() ([]string, error) {
	entries, err := os.ReadDir(s.dir)
	var names []string
	for _, e := range entries {
		if e.Name() != boxesName {
			names = append(names, e.Name())
		}
	}
	return names, err
}
