package session

import (
	"errors"
	"io/fs"
	"os"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/guest/internal/pathname"
)

// Directory resolves the directory in a request field. It returns "" for a missing or empty
// path.
func Directory(base pathname.Base, field string, path *string) (string, error) {
	if op.Value(path) == "" {
		return "", nil
	}
	dir, err := base.Resolve(*path)
	if err != nil {
		return "", op.Errorf(op.Invalid, "%s: %w", field, err)
	}
	info, err := os.Stat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", op.Errorf(op.NotFound, "%s %q does not exist; create it first, or omit %s", field, dir, field)
	case err != nil:
		return "", op.Errorf(op.Denied, "%s %q is not accessible: %w", field, dir, err)
	case !info.IsDir():
		return "", op.Errorf(op.Invalid, "%s %q is not a directory", field, dir)
	}
	return dir, nil
}
