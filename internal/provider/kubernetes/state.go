package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/api"
	"github.com/cove-sandbox/cove/internal/sandbox"
	"github.com/cove-sandbox/cove/internal/system/containerinit"
)

// with calls do on a sandbox that is neither created nor deleted at the moment.
func (p *Provider) with(ctx context.Context, id string, do func(context.Context, *sandbox.Row[*box]) error) error {
	ctx, done, err := p.table.Begin(ctx)
	if err != nil {
		return err
	}
	defer done()
	row, err := p.table.AcquireIdle(ctx, id)
	if err != nil {
		return err
	}
	defer row.Release()
	return do(ctx, row)
}

// Pause implements sandbox.Provider.
func (p *Provider) Pause(context.Context, string) error {
	return fmt.Errorf("%w: a Pod cannot be paused", sandbox.ErrUnsupported)
}

// Resume implements sandbox.Provider.
func (p *Provider) Resume(context.Context, string) error {
	return fmt.Errorf("%w: a Pod cannot be paused", sandbox.ErrUnsupported)
}

// keepsDisk returns ErrUnsupported where the end of a Pod is the end of its disk.
func (s *session) keepsDisk() error {
	if s.cfg.Persistent {
		return nil
	}
	return fmt.Errorf("%w: the disk of a Pod ends with it; set kubernetes_disk to persistent", sandbox.ErrUnsupported)
}

// Stop implements sandbox.Provider.
func (p *Provider) Stop(ctx context.Context, id string) error {
	if err := p.keepsDisk(); err != nil {
		return err
	}
	return p.with(ctx, id, func(ctx context.Context, row *sandbox.Row[*box]) error {
		b, sb := row.Data, row.Sandbox()
		if sb.State == sandbox.Stopped {
			return nil
		}
		// First what we intend, with the output, which ends with the Pod: if we are killed now, the
		// next hub completes it.
		sb.State, sb.Message, sb.Changed = sandbox.Stopped, "", time.Now().Round(0)
		out, _ := p.runner.readLogs(ctx, b, keptLog)
		before := b.rec.Sandbox
		b.rec.Sandbox = sb
		if err := p.runner.save(ctx, b, map[string][]byte{logName: out}); err != nil {
			b.rec.Sandbox = before
			return err
		}
		grace := p.cfg.StopGrace
		if end, ok := ctx.Deadline(); ok {
			grace = min(grace, time.Until(end))
		}
		// Its end is certain from now on, even if the node does not confirm it in time.
		err := p.runner.removePod(ctx, b, b.rec.podName(), grace)
		row.Change(func(now *sandbox.Sandbox) { *now = sb.Clone() })
		return err
	})
}

// Start implements sandbox.Provider.
func (p *Provider) Start(ctx context.Context, id string) error {
	return p.with(ctx, id, func(ctx context.Context, row *sandbox.Row[*box]) error {
		b := row.Data
		if err := p.keepsDisk(); err != nil && b.rec.Restore == nil {
			return err
		}
		if row.Sandbox().State == sandbox.Running {
			return nil
		}
		if err := p.runner.removePod(ctx, b, b.rec.podName(), 0); err != nil { // that which has failed
			return err
		}
		err := p.startAgain(ctx, row)
		if err != nil && row.Sandbox().State == sandbox.Failed {
			err = errors.Join(err, p.change(ctx, row, func(sb *sandbox.Sandbox) { sb.State, sb.Message = sandbox.Stopped, "" }))
		}
		return err
	})
}

// startAgain starts the next generation.
func (p *Provider) startAgain(ctx context.Context, row *sandbox.Row[*box]) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	b := row.Data
	b.src = b.rec.Restore
	plan, err := p.runner.encodePlan(b)
	if err != nil {
		return err
	}
	b.rec.Generation++
	if err := p.runner.save(ctx, b, map[string][]byte{containerinit.PlanName: plan, logName: {}}); err != nil {
		b.rec.Generation--
		return err
	}
	return p.start(ctx, row, nil)
}

// Update implements sandbox.Provider.
func (p *Provider) Update(ctx context.Context, id string, change func(*sandbox.Spec) error) (got sandbox.Sandbox, err error) {
	err = p.with(ctx, id, func(ctx context.Context, row *sandbox.Row[*box]) error {
		b := row.Data
		before := b.rec.Sandbox.Spec
		got, err = row.Update(change, func(next sandbox.Sandbox) error {
			if !p.SamePlace(before.Owner, next.Spec.Owner) {
				return fmt.Errorf("%w: a sandbox cannot move to the namespace of another tenant", sandbox.ErrInvalid)
			}
			if next.State == sandbox.Running && p.runner.resized(before.Resources, next.Spec.Resources) {
				if err := p.runner.resize(ctx, b, next.Spec.Resources); err != nil {
					return err
				}
			}
			return p.store(ctx, b, next)
		})
		if err == nil && (got.Spec.Name != before.Name || got.Spec.Owner != before.Owner) {
			p.relabelLater(b, id)
		}
		return err
	})
	return got, err
}

// resized reports whether a Pod must change for other resources.
func (r *runner) resized(from, to sandbox.Resources) bool {
	from.Disk, from.Files, from.Pids, from.DiskRate, from.Bandwidth = to.Disk, to.Files, to.Pids, to.DiskRate, to.Bandwidth
	return from != to
}

// resize changes the processor and memory of a running Pod.
func (r *runner) resize(ctx context.Context, b *box, want sandbox.Resources) error {
	call, cancel := api.Steady(ctx)
	defer cancel()
	next := r.resources(want)
	delete(next.Limits, "ephemeral-storage")
	delete(next.Requests, "ephemeral-storage")
	change := map[string]any{"spec": map[string]any{"containers": []any{map[string]any{"name": mainContainer, "resources": next}}}}
	err := b.api.Patch(call, pods, []string{b.rec.podName(), "resize"}, api.StrategicPatch, change, nil)
	switch {
	case api.IsMissing(err):
		return fmt.Errorf("%w: this cluster cannot change the resources of a running Pod; Kubernetes 1.33 can", sandbox.ErrUnsupported)
	case err != nil:
		return fmt.Errorf("change the resources of the Pod: %w", explain(err))
	}
	return nil
}

// labelDelay keeps the API server free for who has just got a sandbox and wants to use it.
const labelDelay = time.Second

// relabelLater tells people who look at a Pod whose it is now.
func (p *Provider) relabelLater(b *box, id string) {
	place, pod := b.api, b.rec.podName()
	p.table.Go(func(ctx context.Context) {
		select {
		case <-ctx.Done():
			return
		case <-time.After(labelDelay):
		}
		sb, err := p.table.Get(id)
		if err != nil {
			return // it is gone
		}
		change := map[string]any{"metadata": map[string]any{"labels": p.labels(sb), "annotations": notes(sb)}}
		if err := place.Patch(ctx, pods, []string{pod}, api.MergePatch, change, nil); err != nil && !api.IsMissing(err) && ctx.Err() == nil {
			p.cfg.Log.Warn("cannot label a Pod with its new owner", "pod", pod, "error", err)
		}
	})
}

// Delete implements sandbox.Provider.
func (p *Provider) Delete(ctx context.Context, id string) error {
	ctx, done, err := p.table.Begin(context.WithoutCancel(ctx))
	if err != nil {
		return err
	}
	defer done()
	row, err := p.table.AcquireForDelete(ctx, id)
	if err != nil || row == nil {
		return err
	}
	defer row.Release()
	b, before := row.Data, row.Data.rec.Sandbox
	next := before.Clone()
	next.State = sandbox.Deleting
	if err := p.store(ctx, b, next); err != nil && !api.IsMissing(err) {
		return err
	}
	if err := p.scrap(ctx, row); err != nil {
		return errors.Join(err, p.store(ctx, b, before))
	}
	return nil
}
