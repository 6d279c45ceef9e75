package tree

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/guest/file/internal/access"
	"github.com/cove-sandbox/cove/internal/guest/internal/pathname"
	"github.com/cove-sandbox/cove/internal/guest/internal/pyerr"
)

// MoveIn names a source and a destination.
type MoveIn struct {
	Source      string `json:"source" doc:"Path of a file or folder"`
	Destination string `json:"destination" doc:"New path; end it with a slash to move into a folder"`
	Overwrite   bool   `json:"overwrite" default:"false" doc:"Replace an existing file"`
}

// MoveOut reports both paths.
type MoveOut struct {
	Source      string `json:"source" doc:"Absolute path"`
	Destination string `json:"destination" doc:"Absolute path"`
}

// Move moves or renames a file or folder.
func (s *Service) Move(ctx context.Context, in MoveIn) (MoveOut, error) {
	from, to, err := s.resolvePair("move", in.Source, in.Destination)
	if err != nil {
		return MoveOut{}, err
	}
	if err := s.files.RefuseProtected("move", from); err != nil {
		return MoveOut{}, err
	}
	out := MoveOut{pathname.Show(from), pathname.Show(to)}
	if from == to {
		return out, nil
	}
	err = s.files.WithLocks(ctx, from, to, func() error {
		if err := access.MakeParents(to); err != nil {
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
		return MoveOut{}, explainPair("move", from, to, err)
	}
	return out, nil
}

// resolvePair resolves source and destination, which must not contain each other.
func (s *Service) resolvePair(operation, source, destination string) (from, to string, err error) {
	if from, err = s.files.Resolve(operation, source); err != nil {
		return "", "", err
	}
	if to, err = s.files.Resolve(operation, destination); err != nil {
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
		return "", "", access.Refuse(operation, from, "cannot move or copy a folder into itself (%s)", to)
	}
	return from, to, nil
}

// explainPair returns an error that says which of the two paths it is about.
func explainPair(operation, from, to string, err error) error {
	if errors.Is(err, fs.ErrExist) {
		return pyerr.New(operation, to, pyerr.Spec{Kind: pyerr.Exists, Errno: syscall.EEXIST},
			"%s %s: %s exists; set overwrite to replace a file, or end the destination with a slash to use it as a folder", operation, from, to)
	}
	if errors.Is(err, syscall.ENOTEMPTY) {
		return pyerr.New(operation, to, pyerr.Spec{Kind: pyerr.Exists, Errno: syscall.ENOTEMPTY},
			"%s %s: the folder %s is not empty; delete it first", operation, from, to)
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
	// The file system does not support RENAME_NOREPLACE. This alternative has a race.
	if _, err := os.Lstat(to); err == nil {
		return syscall.EEXIST
	}
	return os.Rename(from, to)
}
