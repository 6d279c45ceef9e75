package runner

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/cove-sandbox/cove/internal/provider/local/internal/disk"
	"github.com/cove-sandbox/cove/internal/provider/local/internal/tree"
	"github.com/cove-sandbox/cove/internal/sandbox"
	"github.com/cove-sandbox/cove/internal/system/isolate"
)

// killTimeout bounds the wait for the end of all processes inside.
const killTimeout = time.Minute

// kill ends all processes of the sandbox and removes its control group. It continues if ctx ends.
func (b *box) kill(ctx context.Context) error {
	if b.spare != nil {
		b.spare.Close()
		b.spare = nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), killTimeout)
	defer cancel()
	if b.run != nil {
		_ = b.run.Kill()
		if frozen, _ := b.group.Frozen(); frozen {
			_ = b.group.Thaw(ctx) // a v1 freezer blocks even SIGKILL
		}
		select {
		case <-b.run.Done():
		case <-ctx.Done():
			return fmt.Errorf("kill sandbox %s: %w", b.rec.Sandbox.ID, ctx.Err())
		}
		b.run.Close()
		b.run = nil
	}
	b.rec.Init, b.demand = isolate.Record{}, demand{}
	if b.group == nil {
		return nil
	}
	return b.group.Remove(ctx)
}

// watchEnd waits in the background for the program to end.
func (r *Runner) watchEnd(id string, h *isolate.Handle) {
	r.table.Go(func(ctx context.Context) {
		select {
		case <-ctx.Done():
			return
		case <-h.Done():
		}
		row, err := r.table.Acquire(ctx, id)
		if err != nil {
			return
		}
		defer row.Release()
		if row.Data.run != h {
			return // it was stopped or deleted
		}
		r.fail(ctx, row)
	})
}

// fail records that the program has ended, and why. A program that was saved to disk has not failed.
func (r *Runner) fail(ctx context.Context, row *sandbox.Row[*box]) {
	b := row.Data
	if b.rec.Save == saveBegun && b.saveIsComplete() {
		if err := r.Saver().finish(ctx, row); err != nil {
			r.cfg.Log.Error("cannot record a sandbox that was paused to disk", "sandbox", b.rec.Sandbox.ID, "error", err)
		}
		return
	}
	reason := b.exitReason()
	if err := errors.Join(b.kill(ctx), r.change(row, func(sb *sandbox.Sandbox) {
		sb.State, sb.Message = sandbox.Failed, reason
	})); err != nil {
		r.cfg.Log.Error("cannot clean up after a sandbox that ended", "sandbox", b.rec.Sandbox.ID, "error", err)
	}
}

// exitReason describes how the program ended.
func (b *box) exitReason() string {
	reason := "ended without an exit status"
	if exit, ok := isolate.ReadExit(b.path(exitName)); ok {
		reason = exit.String()
	}
	if b.group != nil {
		if n := b.group.OOMKills(); n > 0 {
			reason += fmt.Sprintf(" after running out of memory (%d processes were killed); raise its memory limit", n)
		}
	}
	return reason
}

// destroy removes the sandbox and everything that belongs to it.
func (r *Runner) destroy(row *sandbox.Row[*box]) error {
	b := row.Data
	err := errors.Join(b.kill(context.Background()), tree.Remove(b.dir), r.Sockets.remove(b.sockets))
	if err == nil {
		err = r.disks.Drop(b.rec.Disk)
		b.rec.Disk = disk.Disk{}
	}
	if err != nil {
		// It stays in the table as Deleting, so that the delete can be retried. The owner sees the message, which must not
		// contain the path of the state folder.
		message := strings.NewReplacer(b.dir, "its folder", b.sockets, "its sockets", r.cfg.Dir, "the state folder").Replace(err.Error())
		row.Change(func(sb *sandbox.Sandbox) { sb.State, sb.Message = sandbox.Deleting, message })
		return err
	}
	r.ids.free(b.rec.Slot)
	row.Remove()
	return nil
}
