package kubernetes

import (
	"context"

	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/box"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// refreshAll refreshes all sandboxes in the background.
func (p *Provider) refreshAll() {
	boxes, err := p.table.List(sandbox.Filter{})
	if err != nil {
		return // the provider is closed
	}
	for _, sb := range boxes {
		p.refreshLater(sb.ID)
	}
}

// refreshLater refreshes a sandbox in the background, because other calls may have acquired it.
func (p *Provider) refreshLater(id string) {
	p.table.Go(func(ctx context.Context) { p.refresh(ctx, id) })
}

// refresh updates a sandbox if its Pod is in another state.
func (p *Provider) refresh(ctx context.Context, id string) {
	row, err := p.table.AcquireIdle(ctx, id)
	if err != nil {
		return // it is being created or deleted, which sets its state
	}
	defer row.Release()
	b, sb, log := row.Data, row.Sandbox(), p.session.Config.Log
	state, message := p.observedState(b.Record)
	if state == sandbox.Deleting {
		log.Warn("the Pod of a sandbox was removed externally", "sandbox", id)
		if err := p.remove(ctx, row); err != nil {
			log.Error("cannot remove a sandbox without a Pod", "sandbox", id, "error", err)
		}
		return
	}
	if state == sb.State {
		return
	}
	if state != sandbox.Running {
		b.Detach()
	}
	if err := p.change(ctx, row, func(sb *sandbox.Sandbox) { sb.State, sb.Message = state, message }); err != nil {
		log.Error("cannot record the state of a sandbox", "sandbox", id, "error", err)
	}
}

// observedState returns the state of a sandbox according to its Pod; Deleting means that nothing of it remains.
func (p *Provider) observedState(rec box.Record) (sandbox.State, string) {
	sb := rec.Sandbox
	pod, ok := p.watcher.Get(rec.PodName())
	switch {
	case sb.State == sandbox.Stopped:
		return sb.State, sb.Message
	case !ok && !p.session.Config.Persistent:
		return sandbox.Deleting, ""
	case !ok && sb.State == sandbox.Failed:
		return sb.State, sb.Message
	case !ok:
		return sandbox.Failed, "its Pod was removed; start it again"
	}
	if why, ended := pod.Ended(); ended {
		if sb.State == sandbox.Failed {
			why = sb.Message
		}
		return sandbox.Failed, why
	}
	return sandbox.Running, ""
}
