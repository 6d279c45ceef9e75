package tree

import (
	"context"
	"io/fs"
	"os"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/guest/file/internal/access"
	"github.com/cove-sandbox/cove/internal/guest/file/internal/mode"
	"github.com/cove-sandbox/cove/internal/guest/internal/pathname"
	"github.com/cove-sandbox/cove/internal/guest/internal/pyerr"
)

// MkdirIn names a folder to create.
type MkdirIn struct {
	Path    string  `json:"path" doc:"Path of the folder"`
	Parents bool    `json:"parents" default:"true" doc:"Create parent folders, and succeed if the folder exists"`
	Mode    *string `json:"mode" doc:"Octal mode of the new folder, such as 0755"`
}

// MkdirOut reports whether the folder was created.
type MkdirOut struct {
	Path    string `json:"path" doc:"Absolute path"`
	Created bool   `json:"created" doc:"False if the folder existed"`
}

// Mkdir creates a folder.
func (s *Service) Mkdir(ctx context.Context, in MkdirIn) (MkdirOut, error) {
	path, err := s.files.Resolve("mkdir", in.Path)
	if err != nil {
		return MkdirOut{}, err
	}
	var perm fs.FileMode
	if in.Mode != nil {
		if perm, err = mode.Apply(*in.Mode, 0o777|fs.ModeDir); err != nil {
			return MkdirOut{}, access.Refuse("mkdir", path, "%w", err)
		}
	}
	out := MkdirOut{Path: pathname.Show(path), Created: true}
	if info, err := os.Stat(path); err == nil && info.IsDir() && in.Parents {
		out.Created = false
		op.Say(ctx, "%s already exists", path)
		return out, nil
	}
	if in.Parents {
		err = os.MkdirAll(path, 0o777)
	} else {
		err = os.Mkdir(path, 0o777)
	}
	if err == nil && in.Mode != nil {
		err = os.Chmod(path, perm)
	}
	if err != nil {
		return MkdirOut{}, pyerr.From("mkdir", path, err)
	}
	return out, nil
}
