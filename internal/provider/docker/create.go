package docker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/moby/moby/client"

	"github.com/cove-sandbox/cove/internal/sandbox"
)

// Create implements sandbox.Provider.
func (p *Provider) Create(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	ctx, done, err := p.table.Begin(ctx)
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	defer done()
	if err := p.check(spec); err != nil {
		return sandbox.Sandbox{}, err
	}
	return p.create(ctx, spec, func(ctx context.Context) (source, error) { return p.images.findSource(ctx, spec) })
}

// check returns ErrInvalid or ErrUnsupported for a spec that cannot run here.
func (p *Provider) check(spec sandbox.Spec) error {
	if err := spec.Validate(); err != nil {
		return err
	}
	switch {
	case spec.Root:
		return fmt.Errorf("%w: builds of templates with provider docker; use the local provider", sandbox.ErrUnsupported)
	case spec.Isolation != "" && spec.Isolation != Kind:
		return fmt.Errorf("%w: isolation %q; use %s", sandbox.ErrUnsupported, spec.Isolation, Kind)
	case spec.Image == "" && spec.Snapshot == "" && p.cfg.Image == "":
		return fmt.Errorf("%w: an image is required, because the hub has no default image", sandbox.ErrInvalid)
	}
	return nil
}

// create creates a sandbox whose disk starts from the result of find.
func (p *Provider) create(ctx context.Context, spec sandbox.Spec, find func(context.Context) (source, error)) (sandbox.Sandbox, error) {
	now := time.Now().Round(0)
	sb := sandbox.Sandbox{ID: sandbox.NewID(), Spec: spec, State: sandbox.Creating, Created: now, Changed: now}
	sb.Spec.Name = cmp.Or(sb.Spec.Name, sb.ID)
	ctx, row, err := p.table.Add(ctx, sb)
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	defer row.Release()
	row.Data = &box{dir: p.runner.boxDir(sb.ID), rec: record{Sandbox: sb}}
	if err := p.build(ctx, row, find); err != nil {
		return sandbox.Sandbox{}, errors.Join(err, p.remove(ctx, row))
	}
	return row.Sandbox(), nil
}

// build creates the container and starts it.
func (p *Provider) build(ctx context.Context, row *sandbox.Row[*box], find func(context.Context) (source, error)) error {
	b, began := row.Data, time.Now()
	src, err := find(ctx)
	if err != nil {
		return err
	}
	defer p.images.unpin(src.Image)
	found := time.Since(began)
	b.rec.Base, b.rec.From = src.Base, src.From
	// The record says that the sandbox is being created: if the hub dies, the next one removes it.
	if err := errors.Join(b.makeFolders(), b.save()); err != nil {
		return fmt.Errorf("create the folder of the sandbox: %w", err)
	}
	spec := b.rec.Sandbox.Spec
	if err := p.volumes.use(ctx, spec); err != nil {
		return err
	}
	began = time.Now()
	if err := p.runner.makeContainer(ctx, b, src); err != nil {
		return err
	}
	stages := []sandbox.Stage{{Name: "image", Took: found}, {Name: "create", Took: time.Since(began)}}
	return p.start(ctx, row, stages)
}

// start starts the container and waits until the server is ready. If it fails, it stops the container.
func (p *Provider) start(ctx context.Context, row *sandbox.Row[*box], stages []sandbox.Stage) error {
	b := row.Data
	b.rec.Sandbox.Spec = row.Sandbox().Spec
	if err := context.Cause(ctx); err != nil {
		return err
	}
	// The folders may be missing if the state folder was lost.
	if err := errors.Join(b.makeFolders(), p.runner.writePlan(b)); err != nil {
		return fmt.Errorf("write the plan of the sandbox: %w", err)
	}
	call, cancel := steady(ctx)
	defer cancel()
	ended, cancelWatch := p.runner.exits.watch(b.rec.Container)
	defer cancelWatch()
	began := time.Now()
	if _, err := p.engine.ContainerStart(call, b.rec.Container, client.ContainerStartOptions{}); err != nil {
		return fmt.Errorf("start container: %w", explain(err))
	}
	if b.rec.Relimit {
		if err := p.runner.limit(ctx, b, b.rec.Sandbox.Spec); err != nil {
			return errors.Join(err, p.runner.halt(ctx, b, 0))
		}
	}
	stages = append(stages, sandbox.Stage{Name: "start", Took: time.Since(began)})
	began = time.Now()
	if err := p.runner.waitReady(ctx, b, ended); err != nil {
		return errors.Join(err, p.runner.halt(ctx, b, 0))
	}
	stages = append(stages, sandbox.Stage{Name: "ready", Took: time.Since(began)})
	return p.change(row, func(sb *sandbox.Sandbox) { sb.State, sb.Message, sb.Stages = sandbox.Running, "", stages })
}

// change edits the sandbox, in its record and then in the table.
func (p *Provider) change(row *sandbox.Row[*box], edit func(*sandbox.Sandbox)) error {
	b, before := row.Data, row.Data.rec.Sandbox
	next := row.Sandbox()
	edit(&next)
	if next.State != before.State {
		next.Changed = time.Now().Round(0)
	}
	b.rec.Sandbox = next
	if err := b.save(); err != nil {
		b.rec.Sandbox = before
		return fmt.Errorf("save the record of the sandbox: %w", err)
	}
	row.Change(func(sb *sandbox.Sandbox) { *sb = next.Clone() })
	return nil
}

// remove removes the sandbox and everything that belongs to it. If that fails, the record causes the next hub to retry.
func (p *Provider) remove(ctx context.Context, row *sandbox.Row[*box]) error {
	if err := p.runner.removeFiles(ctx, row.Data); err != nil {
		return err
	}
	row.Remove()
	return nil
}
