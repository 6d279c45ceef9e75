package node

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/cove-sandbox/cove/internal/api/op"
)

// maxFiles limits the files of one call; the size of the request limits theirs.
const maxFiles = 1000

// checkFiles rejects paths outside of the code's folder.
func checkFiles(files map[string]string) error {
	if len(files) > maxFiles {
		return op.Errorf(op.Invalid, "too many files (%d); send at most %d with one call", len(files), maxFiles)
	}
	for name := range files {
		if !filepath.IsLocal(name) || strings.IndexByte(name, 0) >= 0 || filepath.Clean(name) == "." {
			return op.Errorf(op.Invalid, "files: %q is not a relative path; omit leading slashes and ..", name)
		}
	}
	return nil
}

// createFolder creates a folder for the files of one call.
func (s *Service) createFolder() (string, error) {
	parent := os.TempDir()
	if s.Config.State != "" {
		parent = filepath.Join(s.Config.State, "nodejs")
		if err := os.MkdirAll(parent, 0o700); err != nil {
			return "", fmt.Errorf("create the folder for files: %w", err)
		}
	}
	dir, err := os.MkdirTemp(parent, "call-")
	if err != nil {
		return "", fmt.Errorf("create the folder for files: %w", err)
	}
	return dir, nil
}

// writeFiles writes files below a folder. It does not follow links to other folders.
func writeFiles(dir string, files map[string]string) error {
	if len(files) == 0 {
		return nil
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return op.Errorf(op.NotFound, "cannot use directory %q: %w; send a cwd that exists", dir, err)
	}
	defer root.Close()
	for name, text := range files {
		err := root.MkdirAll(filepath.Dir(name), 0o755)
		if err == nil {
			err = root.WriteFile(name, []byte(text), 0o644)
		}
		switch {
		case errors.Is(err, fs.ErrPermission):
			return op.Errorf(op.Denied, "files: cannot write %q: %w", name, err)
		case err != nil:
			return op.Errorf(op.Invalid, "files: cannot write %q: %w; choose another name", name, err)
		}
	}
	return nil
}
