package tree

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Remove removes a path and everything below it, if it exists. No other process may write there concurrently.
func Remove(path string) error {
	parent, err := os.Open(filepath.Dir(path))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer parent.Close()
	r := &remover{top: parent, name: "." + filepath.Base(path) + "-deep-"}
	if err := r.remove(int(parent.Fd()), filepath.Base(path), 0); err != nil {
		return fmt.Errorf("remove %s: %w", path, err)
	}
	// Moved folders may be deep, too; each round removes MaxDepth levels.
	for r.next < r.moved {
		name := r.name + strconv.Itoa(r.next)
		r.next++
		if err := r.remove(int(parent.Fd()), name, 0); err != nil {
			return fmt.Errorf("remove %s: %w", path, err)
		}
	}
	return nil
}

// remover removes one tree. It moves folders that are too deep to top, with name and a number.
type remover struct {
	top         *os.File
	name        string
	moved, next int
}

// remove removes one entry. If that fails, it clears flags of the entry and retries once.
func (r *remover) remove(parent int, name string, depth int) error {
	err := r.tryRemove(parent, name, depth)
	if errors.Is(err, unix.EROFS) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		if clearFlags(parent, name) {
			err = r.tryRemove(parent, name, depth)
		}
	}
	return err
}

func (r *remover) tryRemove(parent int, name string, depth int) error {
	err := unix.Unlinkat(parent, name, 0)
	if err == nil || err == unix.ENOENT {
		return nil
	}
	if err != unix.EISDIR && err != unix.EPERM && err != unix.EACCES && err != unix.EROFS {
		return err
	}
	if err := unix.Unlinkat(parent, name, unix.AT_REMOVEDIR); err == nil || err == unix.ENOENT {
		return nil
	}
	if depth == MaxDepth {
		r.moved++
		return unix.Renameat(parent, name, int(r.top.Fd()), r.name+strconv.Itoa(r.moved-1))
	}
	for {
		seen, failed := r.empty(parent, name, depth)
		switch {
		case errors.Is(failed, unix.ENOTDIR):
			return err // it is a file, and the first error is relevant
		case failed != nil:
			return failed
		}
		err := unix.Unlinkat(parent, name, unix.AT_REMOVEDIR)
		// Some filesystems skip entries when a folder shrinks while it is read.
		if !errors.Is(err, unix.ENOTEMPTY) || seen == 0 {
			return err
		}
	}
}

// empty removes the content of a folder and returns the number of entries it saw.
func (r *remover) empty(parent int, name string, depth int) (seen int, err error) {
	dir, err := openDir(parent, name)
	if errors.Is(err, unix.EACCES) {
		// Without root, the mode of a folder may deny access to its owner.
		if err := unix.Fchmodat(parent, name, 0o700, 0); err != nil {
			return 0, err
		}
		dir, err = openDir(parent, name)
	}
	if err != nil {
		return 0, err
	}
	defer dir.Close()
	return seen, Each(dir, func(e os.DirEntry) error {
		seen++
		return r.remove(int(dir.Fd()), e.Name(), depth+1)
	})
}

// Flags that keep root from removing a file or folder.
const (
	fileLocks         = unix.STATX_ATTR_IMMUTABLE | unix.STATX_ATTR_APPEND // chattr uses the same bits
	btrfsSetFlags     = 0x4008941a
	btrfsSubvolFolder = 256 // the inode of a subvolume's root
)

// clearFlags clears flags that prevent the removal of an entry: those of chattr on the entry and its folder, and the
// read-only flag of a btrfs subvolume. It reports whether it has cleared any.
func clearFlags(parent int, name string) (cleared bool) {
	for _, at := range []struct {
		dir  int
		name string
	}{{parent, "."}, {parent, name}} {
		fd, err := unix.Openat(at.dir, at.name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err != nil {
			continue
		}
		if makeWritable(fd) {
			cleared = true
		}
		unix.Close(fd)
	}
	return cleared
}

func makeWritable(fd int) (changed bool) {
	var st unix.Stat_t
	if unix.Fstat(fd, &st) == nil && st.Ino == btrfsSubvolFolder {
		var none uint64
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), btrfsSetFlags, uintptr(unsafe.Pointer(&none)))
		changed = errno == 0
	}
	if flags, err := unix.IoctlGetInt(fd, unix.FS_IOC_GETFLAGS); err == nil && flags&fileLocks != 0 {
		changed = unix.IoctlSetPointerInt(fd, unix.FS_IOC_SETFLAGS, flags&^fileLocks) == nil || changed
	}
	return changed
}
