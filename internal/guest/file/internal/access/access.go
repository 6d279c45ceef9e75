// Package access gives the file operations access to files: it resolves paths, and opens,
// reads, locks and replaces files, as root if requested.
//
// Paths are resolved the same way for all operations. Writes are atomic, and concurrent
// writers of one file are serialized. Only regular files are read, with a size limit.
package access

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/cove-sandbox/cove/internal/guest/internal/pathname"
	"github.com/cove-sandbox/cove/internal/guest/internal/pyerr"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

// Config of the access to files.
type Config struct {
	Home      string
	Workspace string
	Runner    *proc.Runner // nil: nothing can be done as root
	Root      bool         // the process is root and does not need sudo
	MaxRead   int64        // bytes that one read or edit may hold in memory
}

// Files gives access to the sandbox's files.
type Files struct {
	cfg   Config
	base  pathname.Base
	locks locks
}

// New returns the access to files. It has no side effects.
func New(c Config) *Files {
	return &Files{cfg: c, base: pathname.Base{Home: c.Home, Workspace: c.Workspace}}
}

// Resolve returns the absolute path for a caller's path.
func (f *Files) Resolve(operation, path string) (string, error) {
	full, err := f.base.Resolve(path)
	if err != nil {
		return "", pyerr.From(operation, path, err)
	}
	return full, nil
}

// MaxRead is the number of bytes that one read or edit may hold in memory.
func (f *Files) MaxRead() int64 { return f.cfg.MaxRead }

// RefuseProtected returns an error for a folder that the sandbox requires.
func (f *Files) RefuseProtected(operation, path string) error {
	for _, root := range []string{"/", f.cfg.Home, f.cfg.Workspace} {
		if root != "" && path == filepath.Clean(root) {
			return pyerr.New(operation, path, pyerr.Spec{Kind: pyerr.Denied},
				"%s %s: denied, the sandbox requires this folder; name its content instead", operation, path)
		}
	}
	return nil
}

// Refuse returns an error that the request has caused, not the file system.
func Refuse(operation, path, format string, args ...any) error {
	return pyerr.New(operation, path, pyerr.Spec{Kind: pyerr.Target}, "%s %s: %w", operation, path, fmt.Errorf(format, args...))
}

// FailedPath returns the path that an error is about: the one in the error, or else path.
func FailedPath(path string, err error) string {
	if e, ok := errors.AsType[*fs.PathError](err); ok && filepath.IsAbs(e.Path) {
		return e.Path
	}
	return path
}
