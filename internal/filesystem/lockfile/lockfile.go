// Package lockfile owns exclusive locks of files between processes. The kernel releases a lock
// when the file is closed, at the latest when the last process that inherited it ends.
package lockfile

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// ErrLocked means that the file is locked by another open file, usually of another process.
var ErrLocked = errors.New("the lock is held by another process")

// Open opens a file, which it creates for its owner only, and locks it. If the file is
// locked already, it returns ErrLocked at once. Never remove the file: processes would lock
// different files of the same name.
func Open(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := TryLock(f); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return f, nil
}

// TryLock locks an open file. If the file is locked already, it returns ErrLocked at once.
func TryLock(f *os.File) error {
	for {
		switch err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); {
		case errors.Is(err, unix.EWOULDBLOCK):
			return ErrLocked
		case !errors.Is(err, unix.EINTR):
			return err
		}
	}
}

// Release unlocks and closes a file. Unlike Close alone, it releases the lock even if a process that
// is being started still has a copy of the descriptor.
func Release(f *os.File) error {
	return errors.Join(unix.Flock(int(f.Fd()), unix.LOCK_UN), f.Close())
}
