package hub

import (
	"context"
	"errors"
	"time"

	"github.com/cove-sandbox/cove/internal/op"
	"github.com/cove-sandbox/cove/internal/quota"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// amount is what a sandbox takes from its owner's limits. It takes it as long as
// it exists, asleep or not: it may wake at any moment.
func amount(s sandbox.Spec) quota.Amount {
	return quota.Amount{Sandboxes: 1, CPU: max(s.Resources.CPULimit, s.Resources.CPU), Memory: max(s.Resources.MemoryLimit, s.Resources.Memory), Disk: s.Resources.Disk}
}

// take keeps room for sandboxes, one Hold for each, and waits for a turn to make
// them. After a nil error done must be called; it gives back what was not committed.
func (h *Hub) take(ctx context.Context, owner string, specs ...sandbox.Spec) (holds []*quota.Hold, done func(), err error) {
	if err := h.counted(ctx); err != nil {
		return nil, nil, err
	}
	release := func() {
		for _, hold := range holds {
			hold.Release()
		}
	}
	for _, s := range specs {
		hold, err := h.quota.Reserve(owner, amount(s))
		if err != nil {
			release()
			return nil, nil, h.over(err)
		}
		holds = append(holds, hold)
	}
	left, err := h.quota.Turn(ctx, owner)
	if err != nil {
		release()
		return nil, nil, h.over(err)
	}
	return holds, func() { left(); release() }, nil
}

// over explains why there is no room or turn.
func (h *Hub) over(err error) error {
	if e, ok := errors.AsType[*quota.Exceeded](err); ok {
		h.counts.refused(1, string(e.What))
		return exceeded(err)
	}
	return h.wire("", err)
}

// counted returns when the sandboxes that were there before this hub are counted:
// room that they take must not be given away.
func (h *Hub) counted(ctx context.Context) error {
	h.adopting.Lock()
	defer h.adopting.Unlock()
	if h.isCounted {
		return nil
	}
	list, err := h.cfg.Provider.List(ctx, sandbox.Filter{})
	if err != nil {
		return h.wire("", err)
	}
	for _, sb := range list {
		if err := h.quota.Adopt(sb.Spec.Owner, sb.ID, amount(sb.Spec)); err != nil {
			h.cfg.Log.Error("cannot count a sandbox", "sandbox", sb.ID, "error", err)
		}
	}
	// What went away meanwhile may have been freed before it was counted.
	for _, sb := range list {
		if _, err := h.cfg.Provider.Get(ctx, sb.ID); errors.Is(err, sandbox.ErrNotFound) {
			h.quota.Free(sb.ID)
		}
	}
	h.isCounted = true
	return nil
}

// countDisks counts snapshots and volumes. How large those are is looked at now
// and then only: what is in them changes all the time.
func (h *Hub) countDisks(ctx context.Context) {
	if p, err := h.snapshotter(); err == nil {
		list, err := p.Snapshots(ctx, "")
		if err != nil {
			h.cfg.Log.Warn("cannot count snapshots", "error", err)
		}
		for _, s := range list {
			h.countDisk(snapshotItem(s.Owner, s.Name), s.Owner, s.Size)
		}
	}
	if p, err := h.volumer(); err == nil {
		list, err := p.Volumes(ctx, "")
		if err != nil {
			h.cfg.Log.Warn("cannot count volumes", "error", err)
		}
		for _, v := range list {
			h.countDisk(volumeItem(v.Owner, v.Name), v.Owner, v.Size)
		}
	}
}

// settled is the age from which on a sandbox is nobody's create any more.
const settled = time.Minute

// recount counts sandboxes that were made by others than this hub.
func (h *Hub) recount(ctx context.Context) {
	list, err := h.cfg.Provider.List(ctx, sandbox.Filter{})
	if err != nil || h.counted(ctx) != nil {
		return
	}
	for _, sb := range list {
		if sb.State == sandbox.Creating || time.Since(sb.Created) < settled {
			continue
		}
		if err := h.quota.Adopt(sb.Spec.Owner, sb.ID, amount(sb.Spec)); err != nil {
			h.cfg.Log.Error("cannot count a sandbox", "sandbox", sb.ID, "error", err)
		}
		if h.known(sb.ID) == nil { // it went away meanwhile, or will be met again
			h.quota.Free(sb.ID)
		}
	}
}

// adopt counts what is there. It tries until that works.
func (h *Hub) adopt(ctx context.Context) {
	for ctx.Err() == nil {
		err := h.counted(ctx)
		if err == nil {
			h.countDisks(ctx) // nobody waits for it: large volumes take long to measure
			return
		}
		if e, ok := op.AsError(err); ok && e.Code == op.Unavailable {
			return
		}
		h.cfg.Log.Error("cannot count the sandboxes that are there", "error", err)
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}
