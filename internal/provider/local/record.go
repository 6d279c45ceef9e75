package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/cove-sandbox/cove/internal/isolate"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// record is what is kept of a sandbox in its folder. It is the only truth: a hub
// that starts knows nothing else.
type record struct {
	Sandbox sandbox.Sandbox `json:"sandbox"`
	// Slot is the range of user IDs.
	Slot uint32 `json:"slot"`
	// Base is the name of the base that the disk was made on, empty with an image.
	Base string `json:"base,omitempty"`
	// Ref is the name of the image, which the spec need not tell.
	Ref   string `json:"ref,omitempty"`
	Image *Image `json:"image,omitempty"`
	// Layers are those of the store that the disk is made of, oldest first. The
	// last is the sandbox's own and takes the changes; those before are read-only
	// and may be shared.
	Layers []string `json:"layers"`
	// From is the snapshot that the disk started from.
	From string         `json:"from,omitempty"`
	Init isolate.Record `json:"init,omitzero"`
}

const recordName = "state.json"

// save writes the record whole or not at all. It must survive this process, so
// the file is renamed into place; if it must also survive the machine, it is
// forced to disk before.
func (b *box) save(durable bool) error { return saveJSON(b.dir, recordName, b.rec, durable) }

func saveJSON(dir, name string, v any, durable bool) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	tmp := filepath.Join(dir, "."+name+".new")
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("save record: %w", err)
	}
	_, err = f.Write(data)
	if err == nil && durable {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(tmp, filepath.Join(dir, name))
	}
	if err == nil && durable {
		err = syncDir(dir)
	}
	if err != nil {
		return fmt.Errorf("save record: %w", err)
	}
	return nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// load reads a record; a sandbox without one was never finished.
func load(dir string) (rec record, err error) {
	data, err := os.ReadFile(filepath.Join(dir, recordName))
	if err != nil {
		return rec, err
	}
	if err := json.Unmarshal(data, &rec); err != nil {
		return rec, fmt.Errorf("read %s: %w", filepath.Join(dir, recordName), err)
	}
	if rec.Sandbox.ID != filepath.Base(dir) {
		return rec, fmt.Errorf("read %s: it is the record of %q", filepath.Join(dir, recordName), rec.Sandbox.ID)
	}
	return rec, nil
}

// change edits the sandbox, in the table and in its record.
func (p *Provider) change(row *sandbox.Row[*box], edit func(*sandbox.Sandbox)) error {
	row.Data.rec.Sandbox = row.Change(edit)
	if err := row.Data.save(false); err != nil {
		return err
	}
	p.persist(row.Data.dir)
	return nil
}

// persist brings a saved record to the disk without making its caller wait: what
// was saved survives the end of this process, and only a power cut within these
// milliseconds, which ends all that runs, could bring back the state before.
func (p *Provider) persist(dir string) {
	p.table.Go(func(context.Context) {
		f, err := os.Open(filepath.Join(dir, recordName))
		if err == nil {
			err = errors.Join(f.Sync(), f.Close(), syncDir(dir))
		}
		if err != nil && !notThere(err) {
			p.cfg.Log.Warn("cannot bring a sandbox's record to the disk", "folder", dir, "error", err)
		}
	})
}

func notThere(err error) bool { return errors.Is(err, fs.ErrNotExist) }
