package file

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/atomicfile"
	"github.com/cove-sandbox/cove/internal/pathname"
	"github.com/cove-sandbox/cove/internal/pyerr"
)

// MoveIn is where something goes.
type MoveIn struct {
	Source      string `json:"source" doc:"Path of a file or folder"`
	Destination string `json:"destination" doc:"Its new path; a folder to put it into ends in a slash"`
	Overwrite   bool   `json:"overwrite" default:"false" doc:"Replace a file that is there"`
}

// MoveOut tells where it is.
type MoveOut struct {
	Source      string `json:"source" doc:"Absolute path"`
	Destination string `json:"destination" doc:"Absolute path"`
}

// Move moves or renames.
func (s *Service) Move(ctx context.Context, in MoveIn) (MoveOut, error) {
	from, to, err := s.ends("move", in.Source, in.Destination)
	if err != nil {
		return MoveOut{}, err
	}
	if err := s.spare("move", from); err != nil {
		return MoveOut{}, err
	}
	out := MoveOut{pathname.Show(from), pathname.Show(to)}
	if from == to {
		return out, nil
	}
	err = s.both(ctx, from, to, func() error {
		if err := makeParents(to); err != nil {
			return err
		}
		err := rename(from, to, in.Overwrite)
		if errors.Is(err, syscall.EXDEV) {
			if _, err = s.copyTree(ctx, from, to, in.Overwrite); err == nil {
				err = os.RemoveAll(from)
			}
		}
		return err
	})
	if err != nil {
		return MoveOut{}, explainEnds("move", from, to, err)
	}
	return out, nil
}

// ends resolves source and destination, which must not lie in each other.
func (s *Service) ends(operation, source, destination string) (from, to string, err error) {
	if from, err = s.resolve(operation, source); err != nil {
		return "", "", err
	}
	if to, err = s.resolve(operation, destination); err != nil {
		return "", "", err
	}
	info, err := os.Lstat(from)
	if err != nil {
		return "", "", pyerr.From(operation, from, err)
	}
	if strings.HasSuffix(destination, "/") {
		to = filepath.Join(to, filepath.Base(from))
	}
	if info.IsDir() && strings.HasPrefix(to, strings.TrimSuffix(from, "/")+"/") {
		return "", "", refuse(operation, from, "a folder cannot go into itself (%s)", to)
	}
	return from, to, nil
}

// both holds the turns of two files. They are always taken in the same order, so
// that two moves in opposite directions do not wait for each other.
func (s *Service) both(ctx context.Context, a, b string, do func() error) error {
	if b < a {
		a, b = b, a
	}
	first, err := s.locks.take(ctx, a)
	if err != nil {
		return err
	}
	defer first()
	second, err := s.locks.take(ctx, b)
	if err != nil {
		return err
	}
	defer second()
	return do()
}

// explainEnds says which end a failure is about.
func explainEnds(operation, from, to string, err error) error {
	if errors.Is(err, fs.ErrExist) {
		return pyerr.New(operation, to, pyerr.Spec{Kind: pyerr.Exists, Errno: syscall.EEXIST}, "%s %s: %s exists; set overwrite to replace a file, or end the destination in a slash to go into a folder", operation, from, to)
	}
	if errors.Is(err, syscall.ENOTEMPTY) {
		return pyerr.New(operation, to, pyerr.Spec{Kind: pyerr.Exists, Errno: syscall.ENOTEMPTY}, "%s %s: the folder %s is not empty; delete it first", operation, from, to)
	}
	return pyerr.From(operation, from, fmt.Errorf("to %s: %w", to, err))
}

func rename(from, to string, overwrite bool) error {
	if overwrite {
		return os.Rename(from, to)
	}
	err := unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, unix.RENAME_NOREPLACE)
	if !errors.Is(err, syscall.EINVAL) && !errors.Is(err, syscall.ENOSYS) {
		return err
	}
	// The file system does not know how; this leaves a moment in between.
	if _, err := os.Lstat(to); err == nil {
		return syscall.EEXIST
	}
	return os.Rename(from, to)
}

// CopyIn is what to copy.
type CopyIn struct {
	Source      string `json:"source" doc:"Path of a file or folder"`
	Destination string `json:"destination" doc:"Path of the copy; a folder to put it into ends in a slash"`
	Overwrite   bool   `json:"overwrite" default:"false" doc:"Replace a file that is there, or add to a folder"`
}

// CopyOut tells what was copied.
type CopyOut struct {
	Source      string   `json:"source" doc:"Absolute path"`
	Destination string   `json:"destination" doc:"Absolute path"`
	Files       int      `json:"files"`
	Folders     int      `json:"folders"`
	Bytes       int64    `json:"bytes"`
	Skipped     []string `json:"skipped" doc:"Sockets and devices, which are not copied; at most a hundred"`
}

// Copy copies a file or a tree.
func (s *Service) Copy(ctx context.Context, in CopyIn) (CopyOut, error) {
	from, to, err := s.ends("copy", in.Source, in.Destination)
	if err != nil {
		return CopyOut{}, err
	}
	if from == to {
		return CopyOut{}, refuse("copy", from, "source and destination are the same")
	}
	out := CopyOut{Source: pathname.Show(from), Destination: pathname.Show(to)}
	err = s.both(ctx, from, to, func() error {
		if err := makeParents(to); err != nil {
			return err
		}
		done, err := s.copyTree(ctx, from, to, in.Overwrite)
		out.Files, out.Folders, out.Bytes, out.Skipped = done.Files, done.Folders, done.Bytes, done.Skipped
		return err
	})
	if err != nil {
		return CopyOut{}, explainEnds("copy", from, to, err)
	}
	return out, nil
}

// copyTree copies without following links. A tree whose copy fails keeps what
// was copied; a single file is there whole or not at all.
func (s *Service) copyTree(ctx context.Context, from, to string, overwrite bool) (CopyOut, error) {
	var out CopyOut
	if _, err := os.Lstat(to); err == nil && !overwrite {
		return out, syscall.EEXIST
	}
	var modes []func() error // of folders, which may forbid to write into them
	err := filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		target := filepath.Join(to, rel)
		if info.IsDir() {
			out.Folders++
			modes = append(modes, func() error { return os.Chmod(target, info.Mode()) })
			return os.MkdirAll(target, 0o700)
		}
		return copyOne(path, target, info, &out)
	})
	for i := len(modes) - 1; i >= 0; i-- {
		err = errors.Join(err, modes[i]())
	}
	return out, err
}

func copyOne(from, to string, info fs.FileInfo, out *CopyOut) error {
	switch {
	case info.Mode()&fs.ModeSymlink != 0:
		link, err := os.Readlink(from)
		if err != nil {
			return err
		}
		if err := os.Remove(to); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		out.Files++
		return os.Symlink(link, to)
	case info.Mode()&fs.ModeNamedPipe != 0:
		out.Files++
		return unix.Mkfifo(to, uint32(info.Mode().Perm()))
	case !info.Mode().IsRegular():
		if len(out.Skipped) < 100 {
			out.Skipped = append(out.Skipped, pathname.Show(from))
		}
		return nil
	}
	src, err := openRegular(from)
	if err != nil {
		return err
	}
	defer src.Close()
	target, err := atomicfile.Follow(to)
	if err != nil {
		return err
	}
	err = atomicfile.Replace(target, atomicfile.Options{}, func(f *os.File) error {
		n, err := io.Copy(f, src) // copy_file_range, where the kernel can
		out.Bytes += n
		return errors.Join(err, f.Chmod(info.Mode()))
	})
	if err != nil {
		return err
	}
	out.Files++
	return os.Chtimes(target, info.ModTime(), info.ModTime())
}
