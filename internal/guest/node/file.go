package node

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/cove-sandbox/cove/internal/op"
)

// maxFiles bounds how many files one call brings; their size is bounded by the request.
const maxFiles = 1000

// checkFiles refuses names that do not belong beside the code.
func checkFiles(files map[string]string) error {
	if len(files) > maxFiles {
		return op.Errorf(op.Invalid, "files holds %d files; at most %d can be sent with one call", len(files), maxFiles)
	}
	for name := range files {
		if !filepath.IsLocal(name) || strings.IndexByte(name, 0) >= 0 || filepath.Clean(name) == "." {
			return op.Errorf(op.Invalid, "files: %q is not a relative name below the code's folder; leave out leading slashes and ..", name)
		}
	}
	return nil
}

// folder makes a folder for the files of one call.
func (s *Service) folder() (string, error) {
	parent := os.TempDir()
	if s.Config.State != "" {
		parent = filepath.Join(s.Config.State, "nodejs")
		if err := os.MkdirAll(parent, 0o700); err != nil {
			return "", fmt.Errorf("make the folder for files: %w", err)
		}
	}
	dir, err := os.MkdirTemp(parent, "call-")
	if err != nil {
		return "", fmt.Errorf("make the folder for files: %w", err)
	}
	return dir, nil
}

// lay writes files below a folder. No link in it leads them outside.
func lay(dir string, files map[string]string) error {
	if len(files) == 0 {
		return nil
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return op.Errorf(op.NotFound, "the directory %s cannot be used: %w; send a cwd that exists", dir, err)
	}
	defer root.Close()
	for name, text := range files {
		err := root.MkdirAll(filepath.Dir(name), 0o755)
		if err == nil {
			err = root.WriteFile(name, []byte(text), 0o644)
		}
		switch {
		case errors.Is(err, fs.ErrPermission):
			return op.Errorf(op.Denied, "files: %q cannot be written: %w", name, err)
		case err != nil:
			return op.Errorf(op.Invalid, "files: %q cannot be written: %w; choose another name", name, err)
		}
	}
	return nil
}
