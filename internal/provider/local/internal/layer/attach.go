package layer

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/provider/local/internal/tree"
)

// Attach opens the layers of a state folder that a hub may be using, only for Pin. It mounts the filesystem without a
// path; the mount ends with this process.
func Attach(dir string) (*Store, error) {
	s := &Store{dir: filepath.Join(dir, storeName), refs: map[string]int{}, owners: map[uint64]bool{}}
	s.sandboxes, s.volumes = filepath.Join(dir, sandboxesName), filepath.Join(dir, volumesName)
	image := filepath.Join(dir, imageName)
	if !tree.Exists(image) {
		s.subvol = os.Geteuid() == 0 && isBtrfs(s.dir)
		return s, nil
	}
	mount, err := mountDetached(image)
	if err != nil {
		return nil, err
	}
	s.mount, s.subvol, s.dir = mount, true, fmt.Sprintf("/proc/self/fd/%d", mount.Fd())
	s.sandboxes, s.volumes = filepath.Join(s.dir, sandboxesName), filepath.Join(s.dir, volumesName)
	return s, nil
}

// mountDetached mounts a filesystem in a file without a path. It returns the root folder.
func mountDetached(image string) (*os.File, error) {
	f, err := os.OpenFile(image, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	loop, err := findLoop(f)
	if err == nil && loop == nil {
		loop, err = attachLoop(f)
	}
	if err != nil {
		return nil, fmt.Errorf("attach %s: %w", image, err)
	}
	defer loop.Close()
	fs, err := unix.Fsopen("btrfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("mount %s: %w", image, err)
	}
	defer unix.Close(fs)
	err = unix.FsconfigSetString(fs, "source", loop.Name())
	if err == nil {
		err = unix.FsconfigCreate(fs)
	}
	if err != nil {
		return nil, fmt.Errorf("mount %s: %w", image, err)
	}
	fd, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOATIME)
	if err != nil {
		return nil, fmt.Errorf("mount %s: %w", image, err)
	}
	return os.NewFile(uintptr(fd), image), nil
}

// Pinned is a folder whose content does not change.
type Pinned struct {
	Path      string
	Subvolume bool
	release   func() error
}

// Release removes the copy. It fails if the copy did not exist: data that was read from it may be incomplete.
func (p Pinned) Release() error { return p.release() }

// Pin copies a layer or volume atomically if it is a subvolume, and otherwise uses it directly. If this process is
// killed, the next hub removes the copy.
func (s *Store) Pin(path string) (Pinned, error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return Pinned{}, err
	}
	if !s.subvol || st.Ino != firstFree {
		return Pinned{Path: path, release: func() error { return nil }}, nil
	}
	name := NewName()
	if err := snapshotSubvol(path, s.dir, name); err != nil {
		return Pinned{}, fmt.Errorf("copy %s: %w", path, err)
	}
	return Pinned{Path: s.Path(name), Subvolume: true, release: func() error {
		_, missing := os.Lstat(s.Path(name))
		return errors.Join(missing, s.remove(name))
	}}, nil
}
