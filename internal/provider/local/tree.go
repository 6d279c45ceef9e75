package local

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// Trees that a sandbox wrote are walked by descriptors and never by path, never
// through a link, and with a bound on how many folders are open at once: a
// sandbox could have nested them by the hundred thousand.

// maxDepth is how deep folders are walked. Deeper ones are moved up before they
// are removed; a sandbox that has them while it runs is over its limit.
const maxDepth = 256

// removeTree removes a path and all below it. Nothing else may write there.
func removeTree(path string) error {
	parent, err := os.Open(filepath.Dir(path))
	if notThere(err) {
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
	// What was moved up may itself be deep; each round takes maxDepth levels off.
	for r.next < r.moved {
		name := r.name + strconv.Itoa(r.next)
		r.next++
		if err := r.remove(int(parent.Fd()), name, 0); err != nil {
			return fmt.Errorf("remove %s: %w", path, err)
		}
	}
	return nil
}

type remover struct {
	top         *os.File
	name        string
	moved, next int
}

func (r *remover) remove(parent int, name string, depth int) error {
	err := unix.Unlinkat(parent, name, 0)
	if err == nil || err == unix.ENOENT {
		return nil
	}
	if err != unix.EISDIR && err != unix.EPERM && err != unix.EACCES {
		return err
	}
	if err := unix.Unlinkat(parent, name, unix.AT_REMOVEDIR); err == nil || err == unix.ENOENT {
		return nil
	}
	if depth == maxDepth {
		r.moved++
		return unix.Renameat(parent, name, int(r.top.Fd()), r.name+strconv.Itoa(r.moved-1))
	}
	for {
		seen, err := r.empty(parent, name, depth)
		if err != nil {
			return err
		}
		err = unix.Unlinkat(parent, name, unix.AT_REMOVEDIR)
		// Some filesystems skip entries of a folder that shrinks while it is read.
		if !errors.Is(err, unix.ENOTEMPTY) || seen == 0 {
			return err
		}
	}
}

// empty removes what is in a folder and returns how many entries it saw.
func (r *remover) empty(parent int, name string, depth int) (seen int, err error) {
	dir, err := openDir(parent, name)
	if errors.Is(err, unix.EACCES) {
		// Without root a folder of the sandbox may be closed to its owner.
		if err := unix.Fchmodat(parent, name, 0o700, 0); err != nil {
			return 0, err
		}
		dir, err = openDir(parent, name)
	}
	if err != nil {
		return 0, err
	}
	defer dir.Close()
	return seen, each(dir, func(e os.DirEntry) error {
		seen++
		return r.remove(int(dir.Fd()), e.Name(), depth+1)
	})
}

func openDir(parent int, name string) (*os.File, error) {
	fd, err := unix.Openat(parent, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// each calls f for the entries of a folder, a bounded number in memory at once.
func each(dir *os.File, f func(os.DirEntry) error) error {
	for {
		entries, err := dir.ReadDir(1024)
		for _, e := range entries {
			if err := f(e); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// size is how much disk a tree uses.
type size struct {
	bytes, files int64
	deep         bool // it is nested beyond maxDepth
}

// errEnough ends a measurement whose answer is clear.
var errEnough = errors.New("enough")

// measure adds up a tree that may change meanwhile, until it is beyond limit,
// which a sandbox can make take long; 0 is no limit. A file with several names
// counts as a part at each.
func measure(path string, limit int64) (s size, err error) {
	dir, err := os.Open(path)
	if err != nil {
		return s, err
	}
	defer dir.Close()
	if err = s.add(dir, 0, limit); errors.Is(err, errEnough) {
		err = nil
	}
	return s, err
}

func (s *size) add(dir *os.File, depth int, limit int64) error {
	return each(dir, func(e os.DirEntry) error {
		if limit > 0 && (s.bytes > limit || s.files > limit/bytesPerFile) {
			return errEnough
		}
		var st unix.Stat_t
		err := unix.Fstatat(int(dir.Fd()), e.Name(), &st, unix.AT_SYMLINK_NOFOLLOW)
		if errors.Is(err, unix.ENOENT) {
			return nil
		}
		if err != nil {
			return err
		}
		s.files++
		if st.Mode&unix.S_IFMT != unix.S_IFDIR {
			s.bytes += st.Blocks * 512 / int64(max(1, st.Nlink))
			return nil
		}
		s.bytes += st.Blocks * 512
		if depth == maxDepth {
			s.deep = true
			return nil
		}
		sub, err := openDir(int(dir.Fd()), e.Name())
		if vanished(err) {
			return nil
		}
		if err != nil {
			return err
		}
		defer sub.Close()
		return s.add(sub, depth+1, limit)
	})
}

// vanished says that a folder of a sandbox that runs is gone, or made into
// something else, meanwhile; or, without root, closed to us.
func vanished(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.EACCES)
}
