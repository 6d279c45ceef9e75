package file

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/cove-sandbox/cove/internal/guest/internal/pathname"
	"github.com/cove-sandbox/cove/internal/guest/internal/pyerr"
)

// DeleteIn names what to delete.
type DeleteIn struct {
	Path      string `json:"path" doc:"Path of a file, link or folder"`
	Recursive bool   `json:"recursive" default:"false" doc:"Delete a folder with everything in it"`
	MissingOK bool   `json:"missing_ok" default:"false" doc:"Succeed if the path does not exist"`
}

// DeleteOut reports whether something was deleted.
type DeleteOut struct {
	Path    string `json:"path" doc:"Absolute path"`
	Deleted bool   `json:"deleted" doc:"False if the path did not exist"`
}

// Delete deletes a file or folder.
func (s *Service) Delete(ctx context.Context, in DeleteIn) (DeleteOut, error) {
	path, err := s.resolve("delete", in.Path)
	if err != nil {
		return DeleteOut{}, err
	}
	if err := s.refuseProtected("delete", path); err != nil {
		return DeleteOut{}, err
	}
	out := DeleteOut{Path: pathname.Show(path), Deleted: true}
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) && in.MissingOK {
		out.Deleted = false
		return out, nil
	}
	if err != nil {
		return DeleteOut{}, pyerr.From("delete", path, err)
	}
	release, err := s.locks.take(ctx, path)
	if err != nil {
		return DeleteOut{}, pyerr.From("delete", path, err)
	}
	defer release()
	if info.IsDir() && in.Recursive {
		err = os.RemoveAll(path)
	} else {
		err = os.Remove(path)
	}
	if errors.Is(err, syscall.ENOTEMPTY) {
		return DeleteOut{}, pyerr.New("delete", path, pyerr.Spec{Kind: pyerr.Target, Errno: syscall.ENOTEMPTY},
			"delete %s: the folder is not empty; set recursive to delete its content too", path)
	}
	if err != nil {
		return DeleteOut{}, pyerr.From("delete", failedPath(path, err), err)
	}
	return out, nil
}

// refuseProtected refuses to touch the folders that the sandbox cannot work without.
func (s *Service) refuseProtected(operation, path string) error {
	for _, root := range []string{"/", s.cfg.Home, s.cfg.Workspace} {
		if root != "" && path == filepath.Clean(root) {
			return pyerr.New(operation, path, pyerr.Spec{Kind: pyerr.Denied},
				"%s %s: denied, the sandbox needs this folder; name its content instead", operation, path)
		}
	}
	return nil
}
