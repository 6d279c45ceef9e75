package runner

import (
	"context"
	"errors"

	"github.com/cove-sandbox/cove/internal/provider/local/internal/disk"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// Held is a sandbox that no other call changes until it is released. It is not being created or deleted.
type Held struct {
	runner *Runner
	row    *sandbox.Row[*box]
}

// Hold waits until no other call uses a sandbox. The caller must release it.
func (r *Runner) Hold(ctx context.Context, id string) (Held, error) {
	row, err := r.table.AcquireIdle(ctx, id)
	return Held{r, row}, err
}

// Release lets the next call use the sandbox.
func (h Held) Release() { h.row.Release() }

// Sandbox returns a copy of the sandbox.
func (h Held) Sandbox() sandbox.Sandbox { return h.row.Sandbox() }

// Disk returns its disk.
func (h Held) Disk() disk.Disk { return h.row.Data.rec.Disk }

// CopyDisk returns a read-only copy of the disk, which is held for the caller. Running programs are frozen during the
// copy if possible.
func (h Held) CopyDisk(ctx context.Context) (disk.Disk, error) {
	b, disks := h.row.Data, h.runner.disks
	if err := disks.CheckCopy(b.rec.Disk); err != nil {
		return disk.Disk{}, err
	}
	thaw := func() error { return nil }
	if h.row.Sandbox().State == sandbox.Running {
		if err := b.freeze(ctx); err != nil {
			return disk.Disk{}, err
		}
		thaw = func() error { return b.thaw(context.WithoutCancel(ctx)) }
	}
	d, err := disks.Copy(ctx, b.rec.Disk)
	if err := errors.Join(err, thaw()); err != nil {
		return disk.Disk{}, errors.Join(err, disks.Drop(d))
	}
	return d, nil
}

// Written returns the number of bytes that the sandbox has written to its disk, and how many of them since its last
// layer. A copy of the disk cannot be measured: its data counts for the original.
func (h Held) Written() (all, fresh int64, err error) {
	used, err := h.runner.disks.Measure(h.row.Data.rec.Disk, 0)
	return used.Bytes, max(used.Bytes-h.row.Data.layered, 0), err
}

// Layered notes that the first n bytes that the sandbox has written are in layers.
func (h Held) Layered(n int64) { h.row.Data.layered = n }

// ReplaceDisk ends all processes inside and gives the sandbox a new disk that starts from another disk. Unless it
// fails, it takes over the caller's hold on that disk.
func (h Held) ReplaceDisk(ctx context.Context, from disk.Disk) error {
	b, disks := h.row.Data, h.runner.disks
	grown, err := disks.Grow(from, b.rec.Sandbox.ID)
	if err != nil {
		return err
	}
	undo := func(err error) error {
		own := grown
		own.Layers = own.Layers[len(own.Layers)-1:]
		return errors.Join(err, disks.Drop(own))
	}
	if err := errors.Join(b.kill(ctx), b.dropSave()); err != nil {
		return undo(err)
	}
	before := b.rec.Disk
	grown.Ref = before.Ref
	b.rec.Disk = grown
	if err := h.runner.launcher.setDiskLimit(b); err != nil {
		b.rec.Disk = before
		return undo(err)
	}
	// The record makes the change effective; the old disk is removed afterwards.
	if err := h.runner.change(h.row, func(sb *sandbox.Sandbox) { sb.State, sb.Message = sandbox.Stopped, "" }); err != nil {
		b.rec.Disk = before
		return undo(err)
	}
	b.usage, b.layered = usage{}, 0
	disks.Release(before)
	return nil
}

// Start starts the stopped sandbox and waits until it is ready.
func (h Held) Start(ctx context.Context, stages ...sandbox.Stage) error {
	return h.runner.start(ctx, h.row, stages...)
}
