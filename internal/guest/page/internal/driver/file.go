package driver

import (
	"encoding/json"
	"os"
	"path/filepath"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/filesystem/atomicfile"
)

// Resolve returns the absolute path of a path that a caller sent.
func (d *Driver) Resolve(path string) (string, error) {
	resolved, err := d.cfg.Base.Resolve(path)
	if err != nil {
		return "", op.Errorf(op.Invalid, "invalid path: %w", err)
	}
	return resolved, nil
}

// OutputPath resolves the path of a file to write and creates its folder.
func (d *Driver) OutputPath(given string) (string, error) {
	path, err := d.Resolve(given)
	if err != nil {
		return "", err
	}
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		return "", op.Errorf(op.Invalid, "%q is not a regular file; use the path of a file to write", path)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", op.Errorf(op.Denied, "cannot create the folder of %q: %w", path, err)
	}
	return path, nil
}

// WriteJSON replaces a file with a value as indented JSON.
func WriteJSON(path string, perm os.FileMode, v any) error {
	b, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		return err
	}
	return WriteFile(path, perm, b)
}

// WriteFile replaces a file.
func WriteFile(path string, perm os.FileMode, b []byte) error {
	err := atomicfile.Replace(path, atomicfile.Options{Perm: perm}, func(f *os.File) error {
		_, err := f.Write(b)
		return err
	})
	if err != nil {
		return op.Errorf(op.Denied, "cannot write %q: %w", path, err)
	}
	return nil
}
