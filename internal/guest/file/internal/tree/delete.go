package tree

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"syscall"

	"github.com/cove-sandbox/cove/internal/guest/file/internal/access"
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
	path, err := s.files.Resolve("delete", in.Path)
	if err != nil {
		return DeleteOut{}, err
	}
	if err := s.files.RefuseProtected("delete", path); err != nil {
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
	release, err := s.files.Lock(ctx, path)
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
		return DeleteOut{}, pyerr.From("delete", access.FailedPath(path, err), err)
	}
	return out, nil
}
