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

// Names in the folder of a sandbox: its record, and its memory if it is paused to disk.
const (
	RecordName = recordName
	SavedName  = savedName
)

// ReadRecord returns the encoded record in the folder of a sandbox, and its disk. A hub may be using it.
func ReadRecord(dir string) (raw []byte, d disk.Disk, err error) {
	if raw, err = os.ReadFile(filepath.Join(dir, recordName)); err != nil {
		return nil, d, err
	}
	rec, err := load(dir)
	return raw, rec.Disk, err
}

// Restorer adapts the records of sandboxes from a backup.
type Restorer struct{ ids *idRanges }

// NewRestorer returns a Restorer for a hub whose sandboxes use user IDs of the host from first on.
func NewRestorer(first uint32) *Restorer { return &Restorer{newIDRanges(first, disk.IDRange)} }

// Restore adapts the record of a sandbox from a backup: a running sandbox becomes stopped, and the next request
// starts it. It calls change before it saves the record.
func (r *Restorer) Restore(dir string, change func(sb sandbox.Sandbox, d *disk.Disk) error) error {
	rec, err := load(dir)
	if err != nil {
		return err
	}
	// The hub never accepts an invalid spec.
	if err := errors.Join(sandbox.CheckName(rec.Sandbox.Spec.Name), rec.Sandbox.Spec.Validate(), r.ids.adopt(rec.Slot)); err != nil {
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
