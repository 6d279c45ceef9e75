// Package tree handles folders that a sandbox wrote: it removes, measures, copies
// and compares them.
//
// Such trees are walked by descriptor, never by path and never through a link,
// and with a bound on how many folders are open at once, because a sandbox can
// nest them by the hundred thousand. The package keeps no state.
package tree

import (
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// MaxDepth is how deep trees are walked. Remove moves deeper folders up before it
// removes them; Copy refuses them; Measure and Diff report them.
const MaxDepth = 256

// Exists reports whether there is anything at path, even a dangling link.
func Exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// MakePrivate creates a folder that only its owner can enter. What is in it may
// belong to users of sandboxes and be setuid: nobody else on the machine may reach it.
func MakePrivate(dir string) error {
	return errors.Join(os.MkdirAll(dir, 0o700), os.Chmod(dir, 0o700))
}

// Each calls f for the entries of a folder and keeps only some of them in memory.
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

// vanished reports whether a folder of a running sandbox was removed or replaced
// meanwhile or, without root, closed to us.
func vanished(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.EACCES)
}
