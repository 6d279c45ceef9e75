// Package record reads and writes small JSON files. It replaces them atomically and synchronizes them to the disk.
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

// Save replaces the record called name in dir. The change survives the end of this process; call Sync to make it survive
// a power failure.
func Save(dir, name string, v any) error { return save(dir, name, v, false) }

// SaveDurable is Save followed by Sync.
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

// Sync synchronizes a record to the disk.
func Sync(dir, name string) error {
	f, err := os.Open(filepath.Join(dir, name))
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close(), SyncDir(dir))
}

// SyncDir synchronizes the entries of a folder to the disk.
func SyncDir(dir string) error { return atomicfile.SyncDir(dir) }

// SyncFilesystem synchronizes the whole filesystem of a folder to the disk.
func SyncFilesystem(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(unix.Syncfs(int(d.Fd())), d.Close())
}
