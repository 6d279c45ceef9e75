package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

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

// save writes the record whole or not at all, and so that it survives the end of
// this process; persist makes it survive that of the machine.
func (b *box) save() error { return saveJSON(b.dir, recordName, b.rec, false) }

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
	return p.enter(row.Data)
}

// enter saves the record and has it brought to the disk.
func (p *Provider) enter(b *box) error {
	if err := b.save(); err != nil {
		return err
	}
	p.persist(b.dir)
	return nil
}

// persistPause gathers what changes at about the same time, most often the same
// record again, and lets a rush pass: to write a filesystem out takes the processors
// from who is being served.
const persistPause = 2 * time.Second

// persist brings a saved record to the disk without making its caller wait: what
// was saved survives the end of this process, and only a power cut within these
// seconds, which ends all that runs, could bring back the state before.
func (p *Provider) persist(dir string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.unsynced[dir] = true
	if len(p.unsynced) > 1 {
		return // that is being waited for
	}
	p.table.Go(func(ctx context.Context) {
		select {
		case <-ctx.Done():
		case <-time.After(persistPause):
		}
		p.mu.Lock()
		dirs := slices.Collect(maps.Keys(p.unsynced))
		clear(p.unsynced)
		p.mu.Unlock()
		if err := p.syncRecords(dirs); err != nil {
			p.cfg.Log.Warn("cannot bring sandboxes' records to the disk", "error", err)
		}
	})
}

// syncRecords forces records to the disk: one by one or, many of them, with all
// else that is in our own filesystem.
func (p *Provider) syncRecords(dirs []string) error {
	if p.store.image != "" && len(dirs) > 4 {
		f, err := os.Open(p.store.boxes)
		if err != nil {
			return err
		}
		return errors.Join(unix.Syncfs(int(f.Fd())), f.Close())
	}
	var errs []error
	for _, dir := range dirs {
		f, err := os.Open(filepath.Join(dir, recordName))
		if err == nil {
			err = errors.Join(f.Sync(), f.Close(), syncDir(dir))
		}
		if !notThere(err) { // deleted meanwhile
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func notThere(err error) bool { return errors.Is(err, fs.ErrNotExist) }
