package tree

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/filesystem/atomicfile"
	"github.com/cove-sandbox/cove/internal/guest/file/internal/access"
	"github.com/cove-sandbox/cove/internal/guest/internal/pathname"
)

// CopyIn names a source and a destination.
type CopyIn struct {
	Source      string `json:"source" doc:"Path of a file or folder"`
	Destination string `json:"destination" doc:"Path of the copy; end it with a slash to copy into a folder"`
	Overwrite   bool   `json:"overwrite" default:"false" doc:"Replace existing files, and merge folders"`
}

// CopyOut reports what was copied.
type CopyOut struct {
	Source      string   `json:"source" doc:"Absolute path"`
	Destination string   `json:"destination" doc:"Absolute path"`
	Files       int      `json:"files"`
	Folders     int      `json:"folders"`
	Bytes       int64    `json:"bytes"`
	Skipped     []string `json:"skipped" doc:"Sockets and devices that were not copied; at most 100 are listed"`
}

// Copy copies a file or a tree.
func (s *Service) Copy(ctx context.Context, in CopyIn) (CopyOut, error) {
	from, to, err := s.resolvePair("copy", in.Source, in.Destination)
	if err != nil {
		return CopyOut{}, err
	}
	if from == to {
		return CopyOut{}, access.Refuse("copy", from, "source and destination are the same")
	}
	out := CopyOut{Source: pathname.Show(from), Destination: pathname.Show(to)}
	err = s.files.WithLocks(ctx, from, to, func() error {
		if err := access.MakeParents(to); err != nil {
			return err
		}
		done, err := s.copyTree(ctx, from, to, in.Overwrite)
		out.Files, out.Folders, out.Bytes, out.Skipped = done.Files, done.Folders, done.Bytes, done.Skipped
		return err
	})
	if err != nil {
		return CopyOut{}, explainPair("copy", from, to, err)
	}
	return out, nil
}

// copyTree copies without following links. If it fails, completed copies stay; a file is
// never copied partially.
func (s *Service) copyTree(ctx context.Context, from, to string, overwrite bool) (CopyOut, error) {
	var out CopyOut
	if _, err := os.Lstat(to); err == nil && !overwrite {
		return out, syscall.EEXIST
	}
	var modes []func() error // of folders, set last since they may forbid writing
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
	src, err := access.OpenRegular(from)
	if err != nil {
		return err
	}
	defer src.Close()
	target, err := atomicfile.Follow(to)
	if err != nil {
		return err
	}
	err = atomicfile.Replace(target, atomicfile.Options{}, func(f *os.File) error {
		n, err := io.Copy(f, src) // uses copy_file_range if the kernel supports it
		out.Bytes += n
		return errors.Join(err, f.Chmod(info.Mode()))
	})
	if err != nil {
		return err
	}
	out.Files++
	return os.Chtimes(target, info.ModTime(), info.ModTime())
}
