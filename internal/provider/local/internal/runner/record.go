package runner

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/provider/local/internal/disk"
	"github.com/cove-sandbox/cove/internal/provider/local/internal/record"
	"github.com/cove-sandbox/cove/internal/sandbox"
	"github.com/cove-sandbox/cove/internal/system/isolate"
)

// state is the record of a sandbox.
type state struct {
	Sandbox sandbox.Sandbox `json:"sandbox"`
	// Slot is the range of user IDs.
	Slot uint32 `json:"slot"`
	disk.Disk
	Init isolate.Record `json:"init,omitzero"`
	// Save says whether its memory is on disk.
	Save saving `json:"save,omitempty"`
}

const recordName = "state.json"

// save saves the record so that it survives the end of this process; see journal.
func (b *box) save() error { return record.Save(b.dir, recordName, b.rec) }

// load reads the record of a sandbox. One without a record was never finished.
func load(dir string) (rec state, err error) {
	if err := record.Load(dir, recordName, &rec); err != nil {
		return rec, err
	}
	if rec.Sandbox.ID != filepath.Base(dir) {
		return rec, fmt.Errorf("read %s: it is the record of %q", filepath.Join(dir, recordName), rec.Sandbox.ID)
	}
	return rec, nil
}

// change edits the sandbox, in the table and in its record.
func (r *Runner) change(row *sandbox.Row[*box], edit func(*sandbox.Sandbox)) error {
	row.Data.rec.Sandbox = row.Change(edit)
	return r.save(row.Data)
}

// save saves the record and has it written to the disk.
func (r *Runner) save(b *box) error {
	if err := b.save(); err != nil {
		return err
	}
	r.journal.add(b.dir)
	return nil
}

// Disks returns the disks of the sandboxes on record whose owner matches; nil: all. It fails
// rather than leave one out.
func (r *Runner) Disks(match func(owner string) bool) (all []disk.Disk, err error) {
	dirs, err := filepath.Glob(r.Dir("*"))
	if err != nil {
		return nil, err
	}
	for _, d := range dirs {
		rec, err := load(d)
		switch {
		case err == nil && (match == nil || match(rec.Sandbox.Spec.Owner)):
			all = append(all, rec.Disk)
		case err != nil && !errors.Is(err, fs.ErrNotExist):
			return nil, err
		}
	}
	return all, nil
}

// journal writes saved records to the disk without making anyone wait. Only a power
// failure within seconds, which ends everything that runs, brings back an older state.
type journal struct {
	disks      *disk.Store
	background func(func(context.Context))
	log        *slog.Logger

	mu       sync.Mutex
	unsynced map[string]bool // folders of records
}

// syncPause gathers changes, most often of the same record, and lets a burst pass:
// writing a filesystem out takes the processors from those who are being served.
const syncPause = 2 * time.Second

// syncAllAbove is how many records are written one by one; for more, all of our own
// filesystem is written at once.
const syncAllAbove = 4

// add has the record in a folder written soon.
func (j *journal) add(dir string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.unsynced[dir] = true
	if len(j.unsynced) > 1 {
		return // a goroutine is waiting already
	}
	j.background(func(ctx context.Context) {
		select {
		case <-ctx.Done():
		case <-time.After(syncPause):
		}
		j.mu.Lock()
		dirs := slices.Collect(maps.Keys(j.unsynced))
		clear(j.unsynced)
		j.mu.Unlock()
		if err := j.sync(dirs); err != nil {
			j.log.Warn("cannot write sandbox records to the disk", "error", err)
		}
	})
}

func (j *journal) sync(dirs []string) error {
	if len(dirs) > syncAllAbove {
		if ok, err := j.disks.SyncAll(); ok {
			return err
		}
	}
	var errs []error
	for _, dir := range dirs {
		if err := record.Sync(dir, recordName); !errors.Is(err, fs.ErrNotExist) { // else deleted meanwhile
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
