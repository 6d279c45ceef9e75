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
	binName     = "bin"        // the programs that are injected
	recordName  = "record.json"
	seccompName = "seccomp.json"
	hubName     = "hub"     // container.HubDir
	controlName = "control" // container.ControlDir
	initProgram = "cove-container"
)

// The labels of our objects on the engine.
const (
	labelHub      = "io.cove.hub" // the instance
	labelID       = "io.cove.id"
	labelName     = "io.cove.name"  // at creation, for people
	labelOwner    = "io.cove.owner" // at creation, for people; of volumes, for us
	labelSandbox  = "io.cove.sandbox"
	labelSnapshot = "io.cove.snapshot"
	labelBase     = "io.cove.base"
	labelVolume   = "io.cove.volume"
	labelCreated  = "io.cove.created"
)

// record is everything about a sandbox that the engine does not know.
type record struct {
	Sandbox   sandbox.Sandbox `json:"sandbox"`
	Container string          `json:"container,omitempty"`
	// Generation counts the containers that the sandbox has had.
	Generation int    `json:"generation,omitempty"`
	Base       base   `json:"base"`
	From       string `json:"from,omitempty"` // the snapshot its disk started from
	// Relimit says that the container has other limits than the sandbox whenever it starts.
	Relimit bool `json:"relimit,omitempty"`
}

// box is a sandbox; only who has acquired its row uses it.
type box struct {
	dir string
	rec record
}

func (r *runner) boxDir(id string) string { return filepath.Join(r.cfg.Dir, boxesName, id) }

// containerName names the container of a generation, for people and for removal when its ID
// is not known.
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
	// Whatever our umask is: any user inside may read what is for it, and the first process
	// may be any user. The folder above is closed to everyone outside.
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

// installPrograms copies the programs that sandboxes get into the state folder. A later hub,
// with other programs, does not change those of sandboxes that run.
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
