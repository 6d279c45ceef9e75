package envd

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/cove-sandbox/cove/internal/guest/internal/connect"
)

// maxEntries bounds a list.
const maxEntries = 100_000

// pathIn contains a path.
type pathIn struct {
	Path string `json:"path"`
}

// entryOut contains an entry.
type entryOut struct {
	Entry entry `json:"entry"`
}

// at resolves the path of a call for its user.
func (s *Service) at(c connect.Caller, path string) (account, string, error) {
	u, err := s.users.fromHeader(c.Header)
	if err != nil {
		return u, "", err
	}
	path, err = u.resolve(path)
	return u, path, err
}

func (s *Service) stat(ctx context.Context, c connect.Caller, in pathIn) (out entryOut, err error) {
	u, path, err := s.at(c, in.Path)
	if err != nil {
		return out, err
	}
	return out, s.asUser(ctx, u, "stat", helpIn{Path: path}, &out)
}

func stat(in helpIn) (any, error) {
	e, err := describe(in.Path)
	return entryOut{e}, err
}

func (s *Service) makeDir(ctx context.Context, c connect.Caller, in pathIn) (out entryOut, err error) {
	u, path, err := s.at(c, in.Path)
	if err != nil {
		return out, err
	}
	return out, s.asUser(ctx, u, "mkdir", helpIn{Path: path}, &out)
}

func makeDir(in helpIn) (any, error) {
	switch info, err := os.Stat(in.Path); {
	case err == nil && info.IsDir():
		return nil, connect.Errorf(connect.AlreadyExists, "folder %q already exists", in.Path)
	case err == nil:
		return nil, connect.Errorf(connect.InvalidArgument, "path %q exists and is not a folder", in.Path)
	}
	if err := in.makeFolders(in.Path); err != nil {
		return nil, err
	}
	return stat(in)
}

// makeFolders creates a folder with its parents. The created folders belong to the owner of the request.
func (in helpIn) makeFolders(dir string) error {
	var missing []string
	for at := dir; ; at = filepath.Dir(at) {
		if _, err := os.Stat(at); !errors.Is(err, fs.ErrNotExist) {
			break
		}
		missing = append(missing, at)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil || in.Owner == nil {
		return err
	}
	for _, created := range missing {
		if err := os.Lchown(created, in.Owner.User, in.Owner.Group); err != nil {
			return err
		}
	}
	return nil
}

// moveIn is the input of move.
type moveIn struct {
	Source      string `json:"source"`
	Destination string `json:"destination"`
}

func (s *Service) move(ctx context.Context, c connect.Caller, in moveIn) (out entryOut, err error) {
	u, from, err := s.at(c, in.Source)
	if err != nil {
		return out, err
	}
	to, err := u.resolve(in.Destination)
	if err != nil {
		return out, err
	}
	return out, s.asUser(ctx, u, "move", helpIn{Path: from, To: to}, &out)
}

func move(in helpIn) (any, error) {
	if _, err := os.Lstat(in.Path); err != nil {
		return nil, err
	}
	if err := in.makeFolders(filepath.Dir(in.To)); err != nil {
		return nil, err
	}
	if err := os.Rename(in.Path, in.To); err != nil {
		if l, ok := errors.AsType[*os.LinkError](err); ok {
			err = &fs.PathError{Op: l.Op, Path: in.Path, Err: l.Err}
		}
		return nil, err
	}
	return stat(helpIn{Path: in.To})
}

func (s *Service) remove(ctx context.Context, c connect.Caller, in pathIn) (out none, err error) {
	u, path, err := s.at(c, in.Path)
	if err != nil {
		return out, err
	}
	return out, s.asUser(ctx, u, "remove", helpIn{Path: path}, &out)
}

func remove(in helpIn) (any, error) { return none{}, os.RemoveAll(in.Path) }

// open checks that the user may read a file.
func open(in helpIn) (any, error) {
	f, err := os.Open(in.Path)
	if err != nil {
		return nil, err
	}
	return none{}, f.Close()
}

// listIn is the input of listDir.
type listIn struct {
	Path  string `json:"path"`
	Depth int    `json:"depth"`
}

// entriesOut is the content of a folder.
type entriesOut struct {
	Entries []entry `json:"entries,omitempty"`
}

func (s *Service) listDir(ctx context.Context, c connect.Caller, in listIn) (out entriesOut, err error) {
	u, path, err := s.at(c, in.Path)
	if err != nil {
		return out, err
	}
	return out, s.asUser(ctx, u, "list", helpIn{Path: path, Depth: max(in.Depth, 1)}, &out)
}

func list(in helpIn) (any, error) {
	info, err := os.Stat(in.Path)
	switch {
	case err != nil:
		return nil, err
	case !info.IsDir():
		return nil, connect.Errorf(connect.InvalidArgument, "path %q is not a folder", in.Path)
	}
	var out entriesOut
	return &out, out.add(&describer{}, in.Path, in.Depth)
}

// add adds the content of a folder, sorted by path. It does not follow links.
func (o *entriesOut) add(by *describer, dir string, depth int) error {
	list, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, item := range list {
		path := filepath.Join(dir, item.Name())
		e, err := by.describe(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue // it was removed meanwhile
		}
		if err != nil {
			return err
		}
		if len(o.Entries) >= maxEntries {
			return connect.Errorf(connect.ResourceExhausted,
				"folder %q has more than %d entries; list a subfolder, or reduce the depth", dir, maxEntries)
		}
		o.Entries = append(o.Entries, e)
		if item.IsDir() && depth > 1 {
			// An unreadable folder is listed without its content.
			if err := o.add(by, path, depth-1); err != nil && !errors.Is(err, fs.ErrPermission) && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	return nil
}
