package runner

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/cove-sandbox/cove/internal/provider/local/internal/disk"
	"github.com/cove-sandbox/cove/internal/provider/local/internal/record"
	"github.com/cove-sandbox/cove/internal/provider/local/internal/tree"
	"github.com/cove-sandbox/cove/internal/sandbox"
	"github.com/cove-sandbox/cove/internal/system/isolate"
)

// RecordName is the name of the record in the folder of a sandbox, SavedName that of its memory,
// if it is paused to disk.
const (
	RecordName = recordName
	SavedName  = savedName
)

// ReadRecord returns the record in the folder of a sandbox, as it is on disk, and the disk
// that it describes. A hub may be using it.
func ReadRecord(dir string) (raw []byte, d disk.Disk, err error) {
	if raw, err = os.ReadFile(filepath.Join(dir, recordName)); err != nil {
		return nil, d, err
	}
	rec, err := load(dir)
	return raw, rec.Disk, err
}

// Parker changes the records of the sandboxes of a backup.
type Parker struct{ ids *idRanges }

// NewParker returns a Parker for a hub whose sandboxes use the host's user IDs from first on.
func NewParker(first uint32) *Parker { return &Parker{newIDRanges(first)} }

// Park changes the record of a sandbox from a backup: what ran then is stopped now, and the
// next request starts it. Change gets the rest of the record before it is saved.
func (p *Parker) Park(dir string, change func(sb sandbox.Sandbox, d *disk.Disk) error) error {
	rec, err := load(dir)
	if err != nil {
		return err
	}
	// No create would have accepted an invalid spec.
	if err := errors.Join(sandbox.CheckName(rec.Sandbox.Spec.Name), rec.Sandbox.Spec.Validate(), p.ids.adopt(rec.Slot)); err != nil {
		return fmt.Errorf("%w: its record is invalid: %w", tree.ErrRefused, err)
	}
	sb := &rec.Sandbox
	if rec.Init, rec.Save = (isolate.Record{}), ""; sb.State == sandbox.Running || sb.State == sandbox.Paused {
		sb.State, sb.Message = sandbox.Stopped, "restored from a backup"
	}
	if err := change(*sb, &rec.Disk); err != nil {
		return err
	}
	return record.SaveDurable(dir, recordName, rec)
}
