package tree

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/cove-sandbox/cove/internal/guest/file/internal/access"
	"github.com/cove-sandbox/cove/internal/guest/file/internal/mode"
	"github.com/cove-sandbox/cove/internal/guest/internal/pathname"
	"github.com/cove-sandbox/cove/internal/guest/internal/pyerr"
)

// ChmodIn names a path and its new mode.
type ChmodIn struct {
	Path      string `json:"path" doc:"Path of a file or folder"`
	Mode      string `json:"mode" doc:"Octal mode such as 0644, or symbolic mode such as u+x,go-w"`
	Recursive bool   `json:"recursive" default:"false" doc:"Include everything in the folder"`
}

// ChmodOut reports the new mode.
type ChmodOut struct {
	Path    string `json:"path" doc:"Absolute path"`
	Mode    string `json:"mode" doc:"The new mode, octal"`
	Changed int    `json:"changed" doc:"Number of files and folders changed"`
}

// Chmod changes modes. It does not follow links below a folder.
func (s *Service) Chmod(ctx context.Context, in ChmodIn) (ChmodOut, error) {
	path, err := s.files.Resolve("chmod", in.Path)
	if err != nil {
		return ChmodOut{}, err
	}
	out := ChmodOut{Path: pathname.Show(path)}
	one := func(p string, info fs.FileInfo) error {
		perm, err := mode.Apply(in.Mode, info.Mode())
		if err != nil {
			return access.Refuse("chmod", path, "%w", err)
		}
		out.Changed++
		return os.Chmod(p, perm)
	}
	info, err := os.Stat(path)
	if err == nil {
		err = one(path, info)
	}
	if err == nil && in.Recursive && info.IsDir() {
		w := &walker{root: path}
		w.visit = func(rel string, d fs.DirEntry) error {
			info, err := d.Info()
			if errors.Is(err, fs.ErrNotExist) || err == nil && info.Mode()&fs.ModeSymlink != 0 {
				return nil // deleted in the meantime, or a link
			}
			if err != nil {
				return err
			}
			return one(filepath.Join(path, rel), info)
		}
		err = w.run(ctx)
	}
	if err != nil {
		return ChmodOut{}, pyerr.From("chmod", access.FailedPath(path, err), err)
	}
	if info, err = os.Stat(path); err == nil {
		out.Mode = mode.Octal(info.Mode())
	}
	return out, nil
}
