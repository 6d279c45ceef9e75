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
	// Save is the progress of pausing to disk.
	Save saving `json:"save,omitempty"`
}

const recordName = "state.json"

// save saves the record so that it survives the end of this process; see journal.
func (b *box) save() error { return record.Save(b.dir, recordName, b.rec) }

// load reads the record of a sandbox. A sandbox without a record is unfinished.
func load(dir string) (rec state, err error) {
	if err := record.Load(dir, recordName, &rec); err != nil {
		return rec, err
	}
	if rec.Sandbox.ID != filepath.Base(dir) {
		return rec, fmt.Errorf("read %s: it is the record of sandbox %q", filepath.Join(dir, recordName), rec.Sandbox.ID)
	}
	return rec, nil
}

// change edits the sandbox, in the table and in its record.
func (r *Runner) change(row *sandbox.Row[*box], edit func(*sandbox.Sandbox)) error {
	row.Data.rec.Sandbox = row.Change(edit)
	return r.save(row.Data)
}

// save saves the record and schedules its synchronization to the disk.
func (r *Runner) save(b *box) error {
	if err := b.save(); err != nil {
		return err
	}
	r.journal.add(b.dir)
	return nil
}

// Disks returns the disks of all recorded sandboxes whose owner matches; nil: all. It fails if the list would be
// incomplete.
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

// journal synchronizes saved records to the disk in the background. Only a power failure within seconds can restore an
// older state.
type journal struct {
	disks      *disk.Store
	background func(func(context.Context))
	log        *slog.Logger

	mu       sync.Mutex
	unsynced map[string]bool // folders of records
}

// syncPause collects changes, often of the same record, and delays them until after a burst, because synchronizing a
// filesystem slows down requests.
const syncPause = 2 * time.Second

// syncAllAbove is the maximum number of records that are synchronized individually; for more, the whole filesystem is.
const syncAllAbove = 4

// add schedules the synchronization of the record in a folder.
func (j *journal) add(dir string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.unsynced[dir] = true
	if len(j.unsynced) > 1 {
		return // a goroutine is waiting
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
		if err := record.Sync(dir, recordName); !errors.Is(err, fs.ErrNotExist) { // otherwise it was deleted
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
