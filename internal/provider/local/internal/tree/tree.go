// Package tree removes, measures, copies, packs and compares folders that a sandbox has written.
//
// It opens folders by descriptor, never by path or through a link, and limits the number of open folders, because a
// sandbox can nest folders deeply. The package has no state.
package tree

import (
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// MaxDepth is the maximum depth of a tree. Remove moves deeper folders up and removes them; Copy fails; Measure and Diff
// report them.
const MaxDepth = 256

// Exists reports whether path exists, even as a dangling link.
func Exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// MakePrivate creates a folder that only its owner can enter. Its files may belong to users of sandboxes and be setuid, so
// other users of the machine must not access them.
func MakePrivate(dir string) error {
	return errors.Join(os.MkdirAll(dir, 0o700), os.Chmod(dir, 0o700))
}

// Each calls f for the entries of a folder, with bounded memory.
func Each(dir *os.File, f func(os.DirEntry) error) error {
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

func openDir(parent int, name string) (*os.File, error) {
	fd, err := unix.Openat(parent, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// vanished reports whether a running sandbox has removed or replaced a folder or, without root, denied access to it.
func vanished(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.EACCES)
}
