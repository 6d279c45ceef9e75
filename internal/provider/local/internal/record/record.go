// Package record stores small JSON files. It replaces them atomically, and syncs them and the
// data that belongs to them to the disk.
package record

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/filesystem/atomicfile"
)

// Save replaces the record called name in dir. It survives the end of this
// process; call Sync to make it survive a power failure, too.
func Save(dir, name string, v any) error { return save(dir, name, v, false) }

// SaveDurable is Save for a record that must survive a power failure at once.
func SaveDurable(dir, name string, v any) error { return save(dir, name, v, true) }

func save(dir, name string, v any, durable bool) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	err = atomicfile.Replace(filepath.Join(dir, name), atomicfile.Options{Perm: 0o600, Sync: durable}, func(f *os.File) error {
		_, err := f.Write(data)
		return err
	})
	if err != nil {
		return fmt.Errorf("save record: %w", err)
	}
	return nil
}

// Load reads a record into v.
func Load(dir, name string, v any) error {
	path := filepath.Join(dir, name)
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, v); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	return nil
}

// Sync writes a saved record to the disk.
func Sync(dir, name string) error {
	f, err := os.Open(filepath.Join(dir, name))
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close(), SyncDir(dir))
}

// SyncDir writes the entries of a folder to the disk.
func SyncDir(dir string) error { return atomicfile.SyncDir(dir) }

// SyncFilesystem writes the whole filesystem of a folder to the disk.
func SyncFilesystem(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(unix.Syncfs(int(d.Fd())), d.Close())
}
