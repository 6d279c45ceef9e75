package docker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/moby/moby/client"

	"github.com/cove-sandbox/cove/internal/sandbox"
)

// acquire begins a call on a sandbox that is not being created or deleted.
func (p *Provider) acquire(ctx context.Context, id string) (_ context.Context, _ *sandbox.Row[*box], release func(), err error) {
	ctx, done, err := p.table.Begin(ctx)
	if err != nil {
		return nil, nil, nil, err
	}
	row, err := p.table.AcquireIdle(ctx, id)
	if err != nil {
		done()
		return nil, nil, nil, err
	}
	return ctx, row, func() { row.Release(); done() }, nil
}

// transition changes the state of a sandbox with do, unless it has that state.
func (p *Provider) transition(ctx context.Context, id string, to sandbox.State, from []sandbox.State,
	do func(context.Context, *sandbox.Row[*box]) error) error {
	ctx, row, release, err := p.acquire(ctx, id)
	if err != nil {
		return err
	}
	defer release()
	sb := row.Sandbox()
	if sb.State == to {
		return nil
	}
	if !(sandbox.Filter{States: from}).Match(sb) {
		return fmt.Errorf("%w: sandbox %q is %s", sandbox.ErrState, sb.Spec.Name, sb.State)
	}
	return do(ctx, row)
}

// pauseAttempts is the number of attempts to pause: a busy machine may fail to freeze a container in time.
const pauseAttempts = 3

// Pause implements sandbox.Provider.
func (p *Provider) Pause(ctx context.Context, id string) error {
	return p.transition(ctx, id, sandbox.Paused, []sandbox.State{sandbox.Running}, func(ctx context.Context, row *sandbox.Row[*box]) error {
		call, cancel := steady(ctx)
		defer cancel()
		var err error
		for range pauseAttempts {
			if _, err = p.engine.ContainerPause(call, row.Data.rec.Container, client.ContainerPauseOptions{}); err == nil {
				break
			}
		}
		if err != nil {
			return fmt.Errorf("pause container: %w", err)
		}
		return p.change(row, func(sb *sandbox.Sandbox) { sb.State, sb.Message = sandbox.Paused, "" })
	})
}

// Resume implements sandbox.Provider.
func (p *Provider) Resume(ctx context.Context, id string) error {
	return p.transition(ctx, id, sandbox.Running, []sandbox.State{sandbox.Paused}, func(ctx context.Context, row *sandbox.Row[*box]) error {
		call, cancel := steady(ctx)
		defer cancel()
		if _, err := p.engine.ContainerUnpause(call, row.Data.rec.Container, client.ContainerUnpauseOptions{}); err != nil {
			return fmt.Errorf("resume container: %w", err)
		}
		return p.change(row, func(sb *sandbox.Sandbox) { sb.State, sb.Message = sandbox.Running, "" })
	})
}

// Stop implements sandbox.Provider.
func (p *Provider) Stop(ctx context.Context, id string) error {
	from := []sandbox.State{sandbox.Running, sandbox.Paused, sandbox.Failed}
	return p.transition(ctx, id, sandbox.Stopped, from, func(ctx context.Context, row *sandbox.Row[*box]) error {
		b, before := row.Data, row.Data.rec.Sandbox
		// Record the intention first: after a restart of the hub, a container that has ended is stopped, not failed.
		b.rec.Sandbox.State = sandbox.Stopped
		if err := b.save(); err != nil {
			b.rec.Sandbox = before
			return fmt.Errorf("save the record of the sandbox: %w", err)
		}
		grace := p.cfg.StopGrace
		if end, ok := ctx.Deadline(); ok {
			grace = min(grace, time.Until(end))
		}
		if before.State == sandbox.Paused { // a frozen program cannot end
			call, cancel := steady(ctx)
			_, err := p.engine.ContainerUnpause(call, b.rec.Container, client.ContainerUnpauseOptions{})
			cancel()
			if err != nil {
				b.rec.Sandbox = before
				return errors.Join(fmt.Errorf("resume container: %w", err), b.save())
			}
		}
		if err := p.runner.halt(ctx, b, grace); err != nil {
			b.rec.Sandbox = before
			return errors.Join(err, b.save())
		}
		b.rec.Sandbox = before
		return p.change(row, func(sb *sandbox.Sandbox) { sb.State, sb.Message = sandbox.Stopped, "" })
	})
}

// halt stops the container after a grace period.
func (r *runner) halt(ctx context.Context, b *box, grace time.Duration) error {
	call, cancel := steady(ctx)
	defer cancel()
	seconds := int(max(grace, 0) / time.Second)
	if _, err := r.engine.ContainerStop(call, b.rec.Container, client.ContainerStopOptions{Timeout: &seconds}); err != nil {
		return fmt.Errorf("stop container: %w", err)
	}
	return nil
}

// Start implements sandbox.Provider.
func (p *Provider) Start(ctx context.Context, id string) error {
	return p.transition(ctx, id, sandbox.Running, []sandbox.State{sandbox.Stopped, sandbox.Failed},
		func(ctx context.Context, row *sandbox.Row[*box]) error {
			err := p.start(ctx, row, nil)
			if err != nil && row.Sandbox().State == sandbox.Failed {
				err = errors.Join(err, p.change(row, func(sb *sandbox.Sandbox) { sb.State, sb.Message = sandbox.Stopped, "" }))
			}
			return err
		})
}

// Update implements sandbox.Provider.
func (p *Provider) Update(ctx context.Context, id string, change func(*sandbox.Spec) error) (sandbox.Sandbox, error) {
	ctx, row, release, err := p.acquire(ctx, id)
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	defer release()
	b := row.Data
	return row.Update(change, func(next sandbox.Sandbox) error {
		before := b.rec.Sandbox
		if next.Spec.Resources != before.Spec.Resources {
			if err := p.runner.limit(ctx, b, next.Spec); err != nil {
				return err
			}
		}
		b.rec.Sandbox = next
		if err := b.save(); err != nil {
			b.rec.Sandbox = before
			return fmt.Errorf("save the record of the sandbox: %w", err)
		}
		return nil
	})
}

// Delete implements sandbox.Provider.
func (p *Provider) Delete(ctx context.Context, id string) error {
	ctx = context.WithoutCancel(ctx)
	ctx, done, err := p.table.Begin(ctx)
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
	b.rec.Sandbox.State = sandbox.Deleting
	err = b.save()
	if err == nil {
		err = p.remove(ctx, row)
	}
	if err != nil {
		b.rec.Sandbox = before
		return errors.Join(err, b.save())
	}
	if b.rec.From != "" || b.rec.Base.Committed {
		p.images.collect(ctx)
	}
	return nil
}
