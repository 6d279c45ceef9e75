// Package atomicfile replaces files atomically: a reader sees the old content or the new,
// never a mix.
//
// It owns the temporary file next to the target, whose name IsTemp recognizes. It keeps the mode
// and owner of a replaced file, and refuses targets that are not regular files.
package atomicfile

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// prefix and suffix of temporary names. The name of the target is not included, since it may have
// the maximum length.
const (
	prefix = ".cove-"
	suffix = ".tmp"
)

// IsTemp reports whether a file name is a temporary name of this package.
func IsTemp(name string) bool {
	return strings.HasPrefix(name, prefix) && strings.HasSuffix(name, suffix)
}

// maxLinks is the number of symbolic links that the kernel follows.
const maxLinks = 40

// Follow resolves the symbolic links of a path. The file need not exist. Two paths to one file
// have the same result.
func Follow(path string) (string, error) {
	for range maxLinks {
		dir, err := filepath.EvalSymlinks(filepath.Dir(path))
		if err != nil {
			// The folder does not exist yet, so there is nothing to resolve.
			if errors.Is(err, fs.ErrNotExist) {
				return path, nil
			}
			return "", err
		}
		path = filepath.Join(dir, filepath.Base(path))
		link, err := os.Readlink(path)
		switch {
		case errors.Is(err, syscall.EINVAL), errors.Is(err, fs.ErrNotExist):
			return path, nil
		case err != nil:
			return "", err
		case filepath.IsAbs(link):
			path = link
		default:
			path = filepath.Join(dir, link)
		}
	}
	return "", &os.PathError{Op: "open", Path: path, Err: syscall.ELOOP}
}

// Options of a replacement.
type Options struct {
	Perm fs.FileMode // of a new file, before the umask; 0 means 0666
	Sync bool        // sync to disk, so that the content survives a power failure
}

// Replace replaces the content of path with what fill writes. Its folder must exist and its links
// must be resolved. If fill fails or the disk is full, the old content stays.
//
// A file that cannot be replaced but can be written, such as a mount point or a file in
// another user's folder, is written in place. fill is called once.
func Replace(path string, o Options, fill func(*os.File) error) error {
	old, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		old = nil
	case err != nil:
		return err
	case !old.Mode().IsRegular():
		return Irregular(path, old.Mode())
	default:
		// A rename would replace even a file that its mode protects.
		if err := unix.Faccessat(unix.AT_FDCWD, path, unix.W_OK, unix.AT_EACCESS); err != nil {
			return &os.PathError{Op: "open", Path: path, Err: err}
		}
	}
	if o.Perm == 0 {
		o.Perm = 0o666
	}
	f, err := create(filepath.Dir(path), o.Perm)
	if err != nil {
		if old != nil && inPlace(err) {
			return overwrite(path, fill)
		}
		return err
	}
	if err = finish(f, path, old, o, fill); err == nil {
		return nil
	}
	defer os.Remove(f.Name())
	refused, ok := errors.AsType[*refusedError](err)
	switch {
	case !ok:
		return err
	case old != nil && inPlace(refused.err):
		return overwrite(path, func(dst *os.File) error { return copyFrom(dst, f.Name()) })
	}
	return refused.err
}

func copyFrom(dst *os.File, name string) error {
	src, err := os.Open(name)
	if err != nil {
		return err
	}
	defer src.Close()
	_, err = io.Copy(dst, src)
	return err
}

// refusedError marks errors for lack of permissions over the old file, after fill has
// succeeded.
type refusedError struct{ err error }

func (e *refusedError) Error() string { return e.err.Error() }
func (e *refusedError) Unwrap() error { return e.err }

func finish(f *os.File, path string, old fs.FileInfo, o Options, fill func(*os.File) error) error {
	err := fill(f)
	if err == nil && old != nil {
		err = inherit(f, old)
	}
	if err == nil && o.Sync {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return &refusedError{err}
	}
	if o.Sync {
		return SyncDir(filepath.Dir(path))
	}
	return nil
}

// inherit copies owner and mode of the old file. The owner comes first, since changing it clears
// the set-uid bit.
func inherit(f *os.File, old fs.FileInfo) error {
	st, ok := old.Sys().(*syscall.Stat_t)
	if !ok {
		return f.Chmod(old.Mode())
	}
	var current unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &current); err != nil {
		return err
	}
	if current.Uid != st.Uid || current.Gid != st.Gid {
		if err := f.Chown(int(st.Uid), int(st.Gid)); err != nil {
			return &refusedError{err}
		}
	}
	if err := f.Chmod(old.Mode()); err != nil {
		return &refusedError{err}
	}
	return nil
}

func create(dir string, perm fs.FileMode) (*os.File, error) {
	return os.OpenFile(filepath.Join(dir, prefix+rand.Text()+suffix), os.O_RDWR|os.O_CREATE|os.O_EXCL, perm)
}

// inPlace reports whether an error comes from the folder rather than the file.
func inPlace(err error) bool {
	for _, e := range []error{syscall.EACCES, syscall.EPERM, syscall.EROFS, syscall.EBUSY, syscall.EXDEV, syscall.ENOENT} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// overwrite writes a file in place. It truncates the file last, so that a failure loses as
// little as possible.
func overwrite(path string, fill func(*os.File) error) error {
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	err = fill(f)
	if err == nil {
		var end int64
		if end, err = f.Seek(0, io.SeekCurrent); err == nil {
			err = ignoreInvalid(f.Truncate(end))
		}
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}

// ignoreInvalid ignores the error of files without a length, such as those of /proc.
func ignoreInvalid(err error) error {
	if errors.Is(err, syscall.EINVAL) {
		return nil
	}
	return err
}

// SyncDir syncs a folder, so that created, renamed and removed entries survive a power failure.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// Irregular returns the error for anything other than a regular file.
func Irregular(path string, mode fs.FileMode) error {
	if mode.IsDir() {
		return &os.PathError{Op: "open", Path: path, Err: syscall.EISDIR}
	}
	return &os.PathError{Op: "open", Path: path, Err: fmt.Errorf("is %s, not a regular file: %w", Kind(mode), syscall.ENXIO)}
}

// Kind names the type of a mode, with its article.
func Kind(mode fs.FileMode) string {
	switch {
	case mode.IsRegular():
		return "a file"
	case mode.IsDir():
		return "a folder"
	case mode&fs.ModeSymlink != 0:
		return "a symbolic link"
	case mode&fs.ModeNamedPipe != 0:
		return "a FIFO"
	case mode&fs.ModeSocket != 0:
		return "a socket"
	case mode&fs.ModeCharDevice != 0:
		return "a character device"
	case mode&fs.ModeDevice != 0:
		return "a block device"
	}
	return "of unknown type"
}
