package local

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cove-sandbox/cove/internal/isolate"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// Get implements sandbox.Provider.
func (p *Provider) Get(_ context.Context, id string) (sandbox.Sandbox, error) { return p.table.Get(id) }

// List implements sandbox.Provider.
func (p *Provider) List(_ context.Context, f sandbox.Filter) ([]sandbox.Sandbox, error) {
	return p.table.List(f)
}

// Watch implements sandbox.Provider.
func (p *Provider) Watch(ctx context.Context) (<-chan sandbox.Event, error) {
	return p.table.Watch(ctx)
}

// turn acquires a sandbox for a call that leads to the state to. It returns nil,
// nil if the sandbox is in that state already.
func (p *Provider) turn(ctx context.Context, id string, to sandbox.State, from ...sandbox.State) (*sandbox.Row[*box], error) {
	row, err := p.table.AcquireIdle(ctx, id)
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
func (p *Provider) Pause(ctx context.Context, id string) error {
	return p.freeze(ctx, id, sandbox.Paused, sandbox.Running, (*isolate.Group).Freeze)
}

// Resume implements sandbox.Provider.
func (p *Provider) Resume(ctx context.Context, id string) error {
	return p.freeze(ctx, id, sandbox.Running, sandbox.Paused, (*isolate.Group).Thaw)
}

func (p *Provider) freeze(ctx context.Context, id string, to, from sandbox.State, do func(*isolate.Group, context.Context) error) error {
	ctx, done, err := p.table.Begin(ctx)
	if err != nil {
		return err
	}
	defer done()
	if _, err := p.table.Get(id); err != nil {
		return err
	}
	if !p.groups.Has("freezer") {
		return fmt.Errorf("%w: %w", sandbox.ErrUnsupported, isolate.ErrNoFreezer)
	}
	row, err := p.turn(ctx, id, to, from)
	if err != nil || row == nil {
		return err
	}
	defer row.Release()
	if err := do(row.Data.group, ctx); err != nil {
		return err
	}
	return p.change(row, func(sb *sandbox.Sandbox) { sb.State, sb.Message = to, "" })
}

// Stop implements sandbox.Provider.
func (p *Provider) Stop(ctx context.Context, id string) error {
	ctx, done, err := p.table.Begin(ctx)
	if err != nil {
		return err
	}
	defer done()
	row, err := p.turn(ctx, id, sandbox.Stopped, sandbox.Running, sandbox.Paused, sandbox.Failed)
	if err != nil || row == nil {
		return err
	}
	defer row.Release()
	if row.Sandbox().State == sandbox.Running {
		p.ask(ctx, row.Data)
	}
	return p.stopped(ctx, row, "")
}

// ask lets the program end by itself, for as long as the grace and the caller allow.
func (p *Provider) ask(ctx context.Context, b *box) {
	if b.run.Terminate() != nil {
		return
	}
	grace := time.NewTimer(p.cfg.StopGrace)
	defer grace.Stop()
	select {
	case <-b.run.Done():
	case <-grace.C:
	case <-ctx.Done():
	}
}

// stopped ends what is left and enters that.
func (p *Provider) stopped(ctx context.Context, row *sandbox.Row[*box], why string) error {
	if err := row.Data.kill(ctx); err != nil {
		return err
	}
	return p.change(row, func(sb *sandbox.Sandbox) { sb.State, sb.Message = sandbox.Stopped, why })
}

// Start implements sandbox.Provider.
func (p *Provider) Start(ctx context.Context, id string) error {
	ctx, done, err := p.table.Begin(ctx)
	if err != nil {
		return err
	}
	defer done()
	row, err := p.turn(ctx, id, sandbox.Running, sandbox.Stopped, sandbox.Failed)
	if err != nil || row == nil {
		return err
	}
	defer row.Release()
	if err := p.room(row.Data); err != nil {
		return err
	}
	before := row.Sandbox()
	if err := p.start(ctx, row); err != nil {
		return errors.Join(err, p.change(row, func(sb *sandbox.Sandbox) { *sb = before }))
	}
	return nil
}

// Delete implements sandbox.Provider.
func (p *Provider) Delete(ctx context.Context, id string) error {
	_, done, err := p.table.Begin(context.WithoutCancel(ctx))
	if err != nil {
		return err
	}
	defer done()
	row, err := p.table.AcquireDoomed(context.WithoutCancel(ctx), id)
	if err != nil || row == nil {
		return err
	}
	defer row.Release()
	// On record first: if we die now the next hub goes on with it.
	if err := p.change(row, func(sb *sandbox.Sandbox) { sb.State, sb.Message = sandbox.Deleting, "" }); err != nil {
		return err
	}
	return p.destroy(row)
}

// Update implements sandbox.Provider.
func (p *Provider) Update(ctx context.Context, id string, change func(*sandbox.Spec) error) (sandbox.Sandbox, error) {
	ctx, done, err := p.table.Begin(ctx)
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	defer done()
	row, err := p.table.AcquireIdle(ctx, id)
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	defer row.Release()
	b := row.Data
	return row.Update(change, func(next sandbox.Sandbox) error {
		before := b.rec.Sandbox
		b.rec.Sandbox = next
		err := p.limit(b, before.Spec.Resources)
		if err == nil {
			err = p.enter(b)
		}
		if err != nil {
			b.rec.Sandbox = before
			return errors.Join(err, p.limit(b, next.Spec.Resources))
		}
		return nil
	})
}

// limit puts changed resources into effect.
func (p *Provider) limit(b *box, before sandbox.Resources) error {
	if b.run == nil || b.rec.Sandbox.Spec.Resources == before {
		return nil
	}
	return b.group.Set(limits(p.complete(b).Resources))
}
