package access

import (
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/filesystem/atomicfile"
)

// WriteFile replaces a file atomically and creates its parent folders.
func WriteFile(target string, content []byte) error {
	return Replace(target, func(f *os.File) error {
		_, err := f.Write(content)
		return err
	})
}

// Replace replaces a file atomically with what fill writes, and creates its parent folders.
func Replace(target string, fill func(*os.File) error) error {
	if err := MakeParents(target); err != nil {
		return err
	}
	return atomicfile.Replace(target, atomicfile.Options{}, fill)
}

// Append appends to a file in one write, which the kernel does not interleave with
// others. If the disk is full, it truncates the file to its old size.
func Append(target string, content []byte) error {
	if err := MakeParents(target); err != nil {
		return err
	}
	if info, err := os.Lstat(target); err == nil && !info.Mode().IsRegular() {
		return atomicfile.Irregular(target, info.Mode())
	}
	f, err := os.OpenFile(target, os.O_WRONLY|os.O_CREATE|os.O_APPEND|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0o666)
	if err != nil {
		return err
	}
	size, err := f.Seek(0, io.SeekEnd)
	if err == nil {
		if _, err = f.Write(content); err != nil {
			_ = f.Truncate(size) // the first error is the one to report
		}
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}

// MakeParents creates the parent folders of a path.
func MakeParents(path string) error {
	return os.MkdirAll(filepath.Dir(path), 0o777)
}
