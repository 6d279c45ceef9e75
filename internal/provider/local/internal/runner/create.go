package runner

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/cove-sandbox/cove/internal/provider/local/internal/disk"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// Create creates a sandbox from a spec that Check has accepted, and returns when it is ready. Its disk starts from
// another disk, or empty.
func (r *Runner) Create(ctx context.Context, spec sandbox.Spec, from disk.Disk) (sandbox.Sandbox, error) {
	spare, err := r.spares.take()
	defer r.spares.done()
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	now := time.Now()
	sb := sandbox.Sandbox{ID: spare.id, Spec: spec, State: sandbox.Creating, Created: now, Changed: now}
	if sb.Spec.Name == "" {
		sb.Spec.Name = sb.ID
	}
	ctx, row, err := r.table.Add(ctx, sb)
	if err != nil {
		return sandbox.Sandbox{}, errors.Join(err, r.spares.discard(spare))
	}
	defer row.Release()
	sb = row.Sandbox()
	from.Layers, from.Ref = slices.Clone(from.Layers), cmp.Or(from.Ref, spec.Image)
	row.Data = &box{
		spare: spare.init, group: spare.group, dir: r.Dir(sb.ID), sockets: r.Sockets.Dir(sb.ID),
		rec: state{Sandbox: sb, Slot: spare.slot, Disk: from},
	}
	r.disks.Hold(from)
	if err := r.create(ctx, row); err != nil {
		return sandbox.Sandbox{}, errors.Join(err, r.destroy(row))
	}
	return row.Sandbox(), nil
}

func (r *Runner) create(ctx context.Context, row *sandbox.Row[*box]) (err error) {
	b, began := row.Data, time.Now()
	if err := r.disks.CheckSpace(); err != nil {
		return err
	}
	if spec := b.rec.Sandbox.Spec; spec.Image != "" && len(b.rec.Layers) == 0 {
		if b.rec.Image, err = r.disks.Images().Resolve(ctx, spec.Image, spec.Owner); err != nil {
			return err
		}
	}
	// The record is written when the sandbox runs: a folder without a record is unfinished.
	if err := r.launcher.makeFolder(b); err != nil {
		return err
	}
	return r.start(ctx, row, sandbox.Stage{Name: "disk", Took: time.Since(began)})
}

// start runs the sandbox and waits until it is ready; if that fails, it ends the sandbox. The state of the row is
// Creating, Stopped or Failed and becomes Running.
func (r *Runner) start(ctx context.Context, row *sandbox.Row[*box], stages ...sandbox.Stage) error {
	b := row.Data
	leave, err := r.launcher.queue(ctx)
	if err != nil {
		return err
	}
	defer leave()
	spec := r.launcher.defaults.complete(b.rec.Sandbox.Spec, b.rec.Image)
	h, more, err := r.launcher.launch(ctx, b, spec)
	if err != nil {
		return err
	}
	stages = append(stages, more...)
	began := time.Now()
	if err := r.launcher.waitReady(ctx, b, spec); err != nil {
		return errors.Join(err, b.kill(ctx))
	}
	stages = append(stages, sandbox.Stage{Name: "ready", Took: time.Since(began)})
	if b.usage = (usage{size: b.usage.size}); row.Sandbox().State == sandbox.Creating {
		b.usage = r.watcher.unused()
	}
	restored := b.rec.Save == saveDone
	b.rec.Save = ""
	if err := r.change(row, func(sb *sandbox.Sandbox) {
		sb.State, sb.Message, sb.Stages = sandbox.Running, "", stages
	}); err != nil {
		return errors.Join(err, b.kill(ctx))
	}
	r.watchEnd(b.rec.Sandbox.ID, h)
	if restored {
		return b.dropSave()
	}
	return nil
}
