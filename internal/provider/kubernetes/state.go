package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/api"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/box"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/cluster"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/create"
	"github.com/cove-sandbox/cove/internal/sandbox"
	"github.com/cove-sandbox/cove/internal/system/containerinit"
)

// with calls do with a sandbox that is not being created or deleted.
func (p *Provider) with(ctx context.Context, id string, do func(context.Context, *sandbox.Row[*box.Box]) error) error {
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

// checkPersistent returns ErrUnsupported if the disk of a Pod is lost with the Pod.
func (p *Provider) checkPersistent() error {
	if p.session.Config.Persistent {
		return nil
	}
	return fmt.Errorf("%w: the disk of a Pod is deleted with the Pod; set kubernetes_disk to persistent", sandbox.ErrUnsupported)
}

// Stop implements sandbox.Provider.
func (p *Provider) Stop(ctx context.Context, id string) error {
	if err := p.checkPersistent(); err != nil {
		return err
	}
	return p.with(ctx, id, func(ctx context.Context, row *sandbox.Row[*box.Box]) error {
		b, sb := row.Data, row.Sandbox()
		if sb.State == sandbox.Stopped {
			return nil
		}
		// Record the intention first: if this hub dies, the next one completes the stop. The output is
		// stored because it is deleted with the Pod.
		sb.State, sb.Message, sb.Changed = sandbox.Stopped, "", time.Now().Round(0)
		out, _ := p.connector.Output(ctx, b, maxStoredLog)
		if err := b.SaveSandbox(ctx, sb, map[string][]byte{box.LogKey: out}); err != nil {
			return err
		}
		grace := p.session.Config.StopGrace
		if end, ok := ctx.Deadline(); ok {
			grace = min(grace, time.Until(end))
		}
		// The Pod will end even if the node does not confirm it in time.
		err := p.creator.Remove(ctx, b, grace)
		row.Change(func(now *sandbox.Sandbox) { *now = sb.Clone() })
		return err
	})
}

// Start implements sandbox.Provider.
func (p *Provider) Start(ctx context.Context, id string) error {
	return p.with(ctx, id, func(ctx context.Context, row *sandbox.Row[*box.Box]) error {
		b := row.Data
		if err := p.checkPersistent(); err != nil && b.Record.Restore == nil {
			return err
		}
		if row.Sandbox().State == sandbox.Running {
			return nil
		}
		if err := p.creator.Remove(ctx, b, 0); err != nil { // a Pod that has failed
			return err
		}
		err := p.restart(ctx, row)
		if err != nil && row.Sandbox().State == sandbox.Failed {
			err = errors.Join(err, p.change(ctx, row, func(sb *sandbox.Sandbox) { sb.State, sb.Message = sandbox.Stopped, "" }))
		}
		return err
	})
}

// restart starts the next generation.
func (p *Provider) restart(ctx context.Context, row *sandbox.Row[*box.Box]) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	b := row.Data
	b.Source = b.Record.Restore
	plan, err := p.creator.EncodePlan(b)
	if err != nil {
		return err
	}
	b.Record.Generation++
	if err := b.Save(ctx, map[string][]byte{containerinit.PlanName: plan, box.LogKey: {}}); err != nil {
		b.Record.Generation--
		return err
	}
	return p.start(ctx, row, nil)
}

// Update implements sandbox.Provider.
func (p *Provider) Update(ctx context.Context, id string, change func(*sandbox.Spec) error) (got sandbox.Sandbox, err error) {
	err = p.with(ctx, id, func(ctx context.Context, row *sandbox.Row[*box.Box]) error {
		b := row.Data
		before := b.Record.Sandbox.Spec
		got, err = row.Update(change, func(next sandbox.Sandbox) error {
			if !p.SamePlace(before.Owner, next.Spec.Owner) {
				return fmt.Errorf("%w: a sandbox cannot move to the namespace of another tenant", sandbox.ErrInvalid)
			}
			if next.State == sandbox.Running && create.NeedsResize(before.Resources, next.Spec.Resources) {
				if err := p.creator.Resize(ctx, b, next.Spec.Resources); err != nil {
					return err
				}
			}
			return b.SaveSandbox(ctx, next, nil)
		})
		if err == nil && (got.Spec.Name != before.Name || got.Spec.Owner != before.Owner) {
			p.relabelLater(b, id)
		}
		return err
	})
	return got, err
}

// relabelDelay keeps the API server free for the first requests of an owner that received a warm sandbox.
const relabelDelay = time.Second

// relabelLater updates the labels of a Pod, which are only informative, in the background.
func (p *Provider) relabelLater(b *box.Box, id string) {
	ns, pod := b.API, b.Record.PodName()
	p.table.Go(func(ctx context.Context) {
		select {
		case <-ctx.Done():
			return
		case <-time.After(relabelDelay):
		}
		sb, err := p.table.Get(id)
		if err != nil {
			return // it was deleted
		}
		change := map[string]any{"metadata": map[string]any{"labels": p.session.Labels(sb), "annotations": cluster.Annotations(sb)}}
		err = ns.Patch(ctx, cluster.Pods, []string{pod}, api.MergePatch, change, nil)
		if err != nil && !api.IsMissing(err) && ctx.Err() == nil {
			p.session.Config.Log.Warn("cannot label a Pod with its new owner", "pod", pod, "error", err)
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
	b, before := row.Data, row.Data.Record.Sandbox
	next := before.Clone()
	next.State = sandbox.Deleting
	if err := b.SaveSandbox(ctx, next, nil); err != nil && !api.IsMissing(err) {
		return err
	}
	if err := p.remove(ctx, row); err != nil {
		return errors.Join(err, b.SaveSandbox(ctx, before, nil))
	}
	return nil
}
