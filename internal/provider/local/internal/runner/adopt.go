package runner

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"slices"
	"time"

	"github.com/cove-sandbox/cove/internal/provider/local/internal/disk"
	"github.com/cove-sandbox/cove/internal/provider/local/internal/tree"
	"github.com/cove-sandbox/cove/internal/sandbox"
	"github.com/cove-sandbox/cove/internal/system/isolate"
	"github.com/cove-sandbox/cove/internal/system/isolate/cgroup"
)

// Adopt takes over the sandboxes of a previous hub in their actual state, and removes unfinished ones. It returns the
// disks of the sandboxes; complete is false if the record of a sandbox cannot be read or used. Problems with one
// sandbox do not affect the others: failed removals are retried later.
func (r *Runner) Adopt(ctx context.Context) (disks []disk.Disk, complete bool, err error) {
	entries, err := os.ReadDir(r.disks.Sandboxes())
	if err != nil {
		return nil, false, err
	}
	known := []string{}
	complete = true
	for _, e := range entries {
		b := &box{dir: r.Dir(e.Name()), sockets: r.Sockets.Dir(e.Name()), group: r.groups.Group(e.Name())}
		b.rec, err = load(b.dir)
		none := errors.Is(err, fs.ErrNotExist)
		if err != nil && !none {
			// Keep it, so that its owner can inspect it.
			r.cfg.Log.Error("cannot read the record of a sandbox; ignoring the sandbox", "sandbox", e.Name(), "error", err)
			known, complete = append(known, e.Name()), false
			continue
		}
		if none || b.rec.Sandbox.State == sandbox.Creating || b.rec.Sandbox.State == sandbox.Deleting {
			if err := r.discard(ctx, b); err != nil {
				r.cfg.Log.Error("cannot clean up after a sandbox; retrying later", "sandbox", e.Name(), "error", err)
				known, r.cleaner.failed = append(known, e.Name()), append(r.cleaner.failed, b)
			}
			continue
		}
		if err := r.adopt(ctx, b); err != nil {
			r.cfg.Log.Error("cannot adopt a sandbox; ignoring it", "sandbox", e.Name(), "error", err)
			known, complete = append(known, e.Name()), false
			continue
		}
		known, disks = append(known, e.Name()), append(disks, b.rec.Disk)
	}
	// All groups below the group of this hub belong to it, so those without a sandbox are leftovers.
	for _, id := range r.groups.IDs() {
		if !slices.Contains(known, id) {
			if err := removeGroup(ctx, r.groups.Group(id)); err != nil {
				r.cfg.Log.Error("cannot remove the control group of a deleted sandbox", "sandbox", id, "error", err)
			}
		}
	}
	if err := r.Sockets.removeOthers(known); err != nil {
		r.cfg.Log.Error("cannot remove sockets of deleted sandboxes", "error", err)
	}
	return disks, complete, nil
}

func removeGroup(ctx context.Context, g *cgroup.Group) error {
	ctx, cancel := context.WithTimeout(ctx, killTimeout)
	defer cancel()
	return g.Remove(ctx)
}

// discard removes a sandbox that is unfinished or partly removed.
func (r *Runner) discard(ctx context.Context, b *box) error {
	h, err := isolate.Adopt(b.rec.Init)
	if err != nil && !errors.Is(err, isolate.ErrGone) {
		return err
	}
	b.run = h
	return errors.Join(b.kill(ctx), tree.Remove(b.dir), r.Sockets.remove(b.sockets))
}

func (r *Runner) adopt(ctx context.Context, b *box) error {
	if err := r.ids.adopt(b.rec.Slot); err != nil {
		return err
	}
	r.disks.Hold(b.rec.Disk)
	sb := &b.rec.Sandbox
	if r.disks.Lost(b.rec.Disk) {
		sb.State, sb.Message = sandbox.Failed, "its disk was lost when the machine stopped; delete the sandbox"
	}
	if sb.State == sandbox.Running || sb.State == sandbox.Paused {
		if err := r.adoptRunning(ctx, b); err != nil {
			return err
		}
		if err := r.save(b); err != nil {
			return err
		}
	}
	if err := r.Sockets.makeFolders(b.rec.Sandbox.ID); err != nil { // they do not survive a reboot
		return err
	}
	if _, err := r.table.Adopt(*sb, b); err != nil {
		return err
	}
	if b.run != nil {
		r.watchEnd(sb.ID, b.run)
	}
	return nil
}

// adoptRunning determines whether a sandbox still runs.
func (r *Runner) adoptRunning(ctx context.Context, b *box) error {
	sb := &b.rec.Sandbox
	h, err := isolate.Adopt(b.rec.Init)
	if b.rec.Save != "" && (err == nil || errors.Is(err, isolate.ErrGone)) {
		if b.run = h; b.rec.Save == saveDone {
			return b.kill(ctx) // an interrupted restore
		}
		if h == nil && b.saveIsComplete() {
			b.rec.Save, sb.State, sb.Message = saveDone, sandbox.Paused, "paused to disk"
			return b.kill(ctx)
		}
		b.run = nil
	}
	if errors.Is(err, isolate.ErrGone) {
		// It ended, or the machine rebooted, while no hub was running.
		sb.State, sb.Message, sb.Changed = sandbox.Failed, b.exitReason(), time.Now()
		return b.kill(ctx)
	}
	if err != nil {
		return err
	}
	b.run = h
	r.Sockets.setInit(sb.ID, b.rec.Init.PID)
	frozen, err := b.adoptFrozen(ctx, r.groups.Has("freezer"))
	if err != nil {
		return err
	}
	sb.State = sandbox.Running
	if frozen {
		sb.State = sandbox.Paused
	}
	return nil
}
