package docker

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/cove-sandbox/cove/internal/filesystem/atomicfile"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// Names in the state folder.
const (
	boxesName   = "containers" // a folder for each sandbox
	binName     = "bin"        // the programs of Config.Programs
	recordName  = "record.json"
	seccompName = "seccomp.json"
	hubName     = "hub"     // container.HubDir
	controlName = "control" // container.ControlDir
	initProgram = "cove-container"
)

// Labels of objects on the engine.
const (
	labelHub      = "io.cove.hub" // the instance
	labelID       = "io.cove.id"
	labelName     = "io.cove.name"  // at creation; informative
	labelOwner    = "io.cove.owner" // at creation; informative except for volumes
	labelSandbox  = "io.cove.sandbox"
	labelSnapshot = "io.cove.snapshot"
	labelBase     = "io.cove.base"
	labelVolume   = "io.cove.volume"
	labelCreated  = "io.cove.created"
)

// record is the persistent state of a sandbox that the engine does not store.
type record struct {
	Sandbox   sandbox.Sandbox `json:"sandbox"`
	Container string          `json:"container,omitempty"`
	// Generation is the number of rollbacks. Each generation has another container.
	Generation int    `json:"generation,omitempty"`
	Base       base   `json:"base"`
	From       string `json:"from,omitempty"` // the snapshot from which its disk was created
	// Relimit: the limits must be applied after each start of the container.
	Relimit bool `json:"relimit,omitempty"`
}

// box is a sandbox. Only the caller that has acquired its row may use it.
type box struct {
	dir string
	rec record
}

func (r *runner) boxDir(id string) string { return filepath.Join(r.cfg.Dir, boxesName, id) }

// containerName returns the name of the container of a generation, with which it can be removed if its ID is unknown.
func containerName(id string, generation int) string {
	if generation == 0 {
		return "cove-" + id
	}
	return fmt.Sprintf("cove-%s-%d", id, generation)
}

// makeFolders creates the folders that the container sees.
func (b *box) makeFolders() error {
	if err := os.MkdirAll(b.dir, 0o700); err != nil {
		return err
	}
	// Independently of the umask, any user inside may read the hub's files, and the first process may run as any user. The
	// parent folder is private.
	for name, mode := range map[string]os.FileMode{hubName: 0o755, controlName: 0o777 | os.ModeSticky} {
		dir := filepath.Join(b.dir, name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		if err := os.Chmod(dir, mode); err != nil {
			return err
		}
	}
	return nil
}

// save writes the record.
func (b *box) save() error {
	return writeJSON(filepath.Join(b.dir, recordName), 0o600, b.rec)
}

func writeJSON(path string, mode os.FileMode, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return atomicfile.Replace(path, atomicfile.Options{Perm: mode, Sync: true}, func(f *os.File) error {
		_, err := f.Write(data)
		return errors.Join(err, f.Chmod(mode))
	})
}

func loadRecord(dir string) (rec record, err error) {
	data, err := os.ReadFile(filepath.Join(dir, recordName))
	if err == nil {
		err = json.Unmarshal(data, &rec)
	}
	return rec, err
}

// installPrograms copies the programs of sandboxes into the state folder. A later hub with other programs does not change
// those of running sandboxes.
func (r *runner) installPrograms() error {
	dir := filepath.Join(r.cfg.Dir, binName)
	if err := os.Chmod(dir, 0o755); err != nil {
		return err
	}
	for name, source := range r.cfg.Programs {
		if err := installProgram(filepath.Join(dir, name), source); err != nil {
			return fmt.Errorf("install %s: %w", name, err)
		}
	}
	return nil
}

func installProgram(target, source string) error {
	from, err := os.Open(source)
	if err != nil {
		return err
	}
	defer from.Close()
	info, err := from.Stat()
	if err != nil {
		return err
	}
	if old, err := os.Stat(target); err == nil && old.Size() == info.Size() && old.ModTime().Equal(info.ModTime()) {
		return nil
	}
	err = atomicfile.Replace(target, atomicfile.Options{Perm: 0o755}, func(f *os.File) error {
		_, err := io.Copy(f, from)
		return errors.Join(err, f.Chmod(0o755))
	})
	if err != nil {
		return err
	}
	return os.Chtimes(target, info.ModTime(), info.ModTime())
}
