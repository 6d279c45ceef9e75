package runner

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cove-sandbox/cove/internal/sandbox"
)

// Get implements sandbox.Provider.
func (r *Runner) Get(_ context.Context, id string) (sandbox.Sandbox, error) { return r.table.Get(id) }

// List implements sandbox.Provider.
func (r *Runner) List(_ context.Context, f sandbox.Filter) ([]sandbox.Sandbox, error) {
	return r.table.List(f)
}

// Watch implements sandbox.Provider.
func (r *Runner) Watch(ctx context.Context) (<-chan sandbox.Event, error) {
	return r.table.Watch(ctx)
}

// acquireFor acquires a sandbox for a change from one of the states from to the state to. It returns nil, nil if the
// sandbox is in the state to.
func (r *Runner) acquireFor(ctx context.Context, id string, to sandbox.State, from ...sandbox.State) (*sandbox.Row[*box], error) {
	row, err := r.table.AcquireIdle(ctx, id)
	if err != nil {
		return nil, err
	}
	sb := row.Sandbox()
	if sb.State == to {
		row.Release()
		return nil, nil
	}
	if !slices.Contains(from, sb.State) {
		row.Release()
		return nil, fmt.Errorf("%w: sandbox %q is %s", sandbox.ErrState, sb.Spec.Name, sb.State)
	}
	return row, nil
}

// Pause implements sandbox.Provider.
func (r *Runner) Pause(ctx context.Context, id string) error {
	return r.freeze(ctx, id, sandbox.Paused, sandbox.Running, (*box).freeze)
}

// Resume implements sandbox.Provider.
func (r *Runner) Resume(ctx context.Context, id string) error {
	if saved, err := r.Saver().resume(ctx, id); saved || err != nil {
		return err
	}
	return r.freeze(ctx, id, sandbox.Running, sandbox.Paused, (*box).thaw)
}

func (r *Runner) freeze(ctx context.Context, id string, to, from sandbox.State, do func(*box, context.Context) error) error {
	ctx, done, err := r.table.Begin(ctx)
	if err != nil {
		return err
	}
	defer done()
	row, err := r.acquireFor(ctx, id, to, from)
	if err != nil || row == nil {
		return err
	}
	defer row.Release()
	if err := do(row.Data, ctx); err != nil {
		return err
	}
	return r.change(row, func(sb *sandbox.Sandbox) { sb.State, sb.Message = to, "" })
}

// Stop implements sandbox.Provider.
func (r *Runner) Stop(ctx context.Context, id string) error {
	ctx, done, err := r.table.Begin(ctx)
	if err != nil {
		return err
	}
	defer done()
	row, err := r.acquireFor(ctx, id, sandbox.Stopped, sandbox.Running, sandbox.Paused, sandbox.Failed)
	if err != nil || row == nil {
		return err
	}
	defer row.Release()
	if row.Sandbox().State == sandbox.Running {
		r.terminate(ctx, row.Data)
	}
	return r.stop(ctx, row, "")
}

// terminate asks the program to end, and waits for the grace period or until ctx ends.
func (r *Runner) terminate(ctx context.Context, b *box) {
	if b.run.Terminate() != nil {
		return
	}
	grace := time.NewTimer(r.cfg.StopGrace)
	defer grace.Stop()
	select {
	case <-b.run.Done():
	case <-grace.C:
	case <-ctx.Done():
	}
}

// stop kills the remaining processes and records that the sandbox is stopped.
func (r *Runner) stop(ctx context.Context, row *sandbox.Row[*box], reason string) error {
	if err := errors.Join(row.Data.kill(ctx), row.Data.dropSave()); err != nil {
		return err
	}
	return r.change(row, func(sb *sandbox.Sandbox) { sb.State, sb.Message = sandbox.Stopped, reason })
}

// Start implements sandbox.Provider.
func (r *Runner) Start(ctx context.Context, id string) error {
	ctx, done, err := r.table.Begin(ctx)
	if err != nil {
		return err
	}
	defer done()
	row, err := r.acquireFor(ctx, id, sandbox.Running, sandbox.Stopped, sandbox.Failed)
	if err != nil || row == nil {
		return err
	}
	defer row.Release()
	if err := errors.Join(r.watcher.checkUsage(row.Data), row.Data.dropSave()); err != nil {
		return err
	}
	before := row.Sandbox()
	if err := r.start(ctx, row); err != nil {
		return errors.Join(err, r.change(row, func(sb *sandbox.Sandbox) { *sb = before }))
	}
	return nil
}

// Delete implements sandbox.Provider.
func (r *Runner) Delete(ctx context.Context, id string) error {
	_, done, err := r.table.Begin(context.WithoutCancel(ctx))
	if err != nil {
		return err
	}
	defer done()
	row, err := r.table.AcquireForDelete(context.WithoutCancel(ctx), id)
	if err != nil || row == nil {
		return err
	}
	defer row.Release()
	// Recorded first, so that the next hub continues if this one dies.
	if err := r.change(row, func(sb *sandbox.Sandbox) { sb.State, sb.Message = sandbox.Deleting, "" }); err != nil {
		return err
	}
	return r.destroy(row)
}

// Update implements sandbox.Provider.
func (r *Runner) Update(ctx context.Context, id string, change func(*sandbox.Spec) error) (sandbox.Sandbox, error) {
	ctx, done, err := r.table.Begin(ctx)
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	defer done()
	row, err := r.table.AcquireIdle(ctx, id)
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	defer row.Release()
	b := row.Data
	return row.Update(change, func(next sandbox.Sandbox) error {
		before := b.rec.Sandbox
		b.rec.Sandbox = next
		err := r.launcher.applyLimits(b, before.Spec.Resources)
		if err == nil {
			err = b.rename(before.Spec.Name)
		}
		if err == nil {
			err = r.save(b)
		}
		if err != nil {
			b.rec.Sandbox = before
			return errors.Join(err, r.launcher.applyLimits(b, next.Spec.Resources))
		}
		return nil
	})
}
