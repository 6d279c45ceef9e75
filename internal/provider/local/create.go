package local

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/isolate"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// Create implements sandbox.Provider.
func (p *Provider) Create(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	if err := p.check(spec); err != nil {
		return sandbox.Sandbox{}, err
	}
	ctx, done, err := p.table.Begin(ctx)
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	defer done()
	var from stack
	if spec.Snapshot != "" {
		if from, err = p.borrow(spec.Owner, spec.Snapshot); err != nil {
			return sandbox.Sandbox{}, err
		}
		defer func() { p.giveBack(from) }()
		if spec.Image != "" && spec.Image != from.Ref {
			return sandbox.Sandbox{}, fmt.Errorf("%w: snapshot %q stands on image %q, not %q; leave the image out", sandbox.ErrInvalid, spec.Snapshot, from.Ref, spec.Image)
		}
	}
	return p.make(ctx, spec, from)
}

// make creates a sandbox on a disk that starts from others' layers, or afresh.
func (p *Provider) make(ctx context.Context, spec sandbox.Spec, from stack) (sandbox.Sandbox, error) {
	at, err := p.place()
	defer p.placed()
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	now := time.Now()
	sb := sandbox.Sandbox{ID: at.id, Spec: spec, State: sandbox.Creating, Created: now, Changed: now}
	if sb.Spec.Name == "" {
		sb.Spec.Name = sb.ID
	}
	ctx, row, err := p.table.Add(ctx, sb)
	if err != nil {
		return sandbox.Sandbox{}, errors.Join(err, p.vacate(at))
	}
	defer row.Release()
	sb = row.Sandbox()
	row.Data = &box{spare: at.Spare, group: at.group, dir: p.dir(sb.ID), rec: record{Sandbox: sb, Slot: at.slot,
		Base: from.Base, Ref: cmp.Or(from.Ref, spec.Image), Image: from.Image, From: from.name, Layers: slices.Clone(from.Layers)}}
	p.hold(from.Layers...)
	if err := p.create(ctx, row); err != nil {
		return sandbox.Sandbox{}, errors.Join(err, p.destroy(row))
	}
	return row.Sandbox(), nil
}

func (p *Provider) create(ctx context.Context, row *sandbox.Row[*box]) error {
	began := time.Now()
	if err := p.store.room(); err != nil {
		return err
	}
	if ref := row.Data.rec.Sandbox.Spec.Image; ref != "" && len(row.Data.rec.Layers) == 0 {
		img, err := p.cfg.Images.Resolve(ctx, ref)
		if err != nil {
			return err
		}
		row.Data.rec.Image = &img
	}
	// There is no record until something runs: what is found without one was not
	// finished.
	if err := p.makeDisk(row.Data); err != nil {
		return err
	}
	return p.start(ctx, row, sandbox.Stage{Name: "disk", Took: time.Since(began)})
}

// check refuses what cannot be made here.
func (p *Provider) check(spec sandbox.Spec) error {
	if err := spec.Validate(); err != nil {
		return err
	}
	switch {
	case spec.Isolation != "" && spec.Isolation != Isolation:
		return fmt.Errorf("%w: isolation %q; use %q", sandbox.ErrUnsupported, spec.Isolation, Isolation)
	case spec.Image != "" && p.cfg.Images == nil:
		return fmt.Errorf("%w: images; leave the image out to use this machine's programs", sandbox.ErrUnsupported)
	case spec.Image == "" && spec.Snapshot == "" && len(spec.Command) == 0 && len(p.cfg.Command) == 0:
		return fmt.Errorf("%w: give a command", sandbox.ErrInvalid)
	}
	return nil
}

// start runs the sandbox and waits until it is ready; it undoes that on failure.
// The row's state is Creating, Stopped or Failed and becomes Running.
func (p *Provider) start(ctx context.Context, row *sandbox.Row[*box], stages ...sandbox.Stage) error {
	b := row.Data
	done, err := p.queue(ctx)
	if err != nil {
		return err
	}
	defer done()
	h, more, err := p.launch(ctx, b)
	if err != nil {
		return err
	}
	stages = append(stages, more...)
	began := time.Now()
	if err := p.ready(ctx, b); err != nil {
		return errors.Join(err, b.kill(ctx))
	}
	stages = append(stages, sandbox.Stage{Name: "ready", Took: time.Since(began)})
	if b.usage = (usage{size: b.usage.size}); row.Sandbox().State == sandbox.Creating {
		b.usage = p.unused()
	}
	if err := p.change(row, func(sb *sandbox.Sandbox) {
		sb.State, sb.Message, sb.Stages = sandbox.Running, "", stages
	}); err != nil {
		return errors.Join(err, b.kill(ctx))
	}
	p.mind(b.rec.Sandbox.ID, h)
	return nil
}

// patience is how long a start keeps others waiting at the most.
const patience = 250 * time.Millisecond

// queue lets only as many sandboxes start at once as there are processors for:
// hundred at once would all be as slow as the last. One that takes its time is
// not waited for.
func (p *Provider) queue(ctx context.Context) (done func(), err error) {
	select {
	case p.starts <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	var once sync.Once
	leave := func() { once.Do(func() { <-p.starts }) }
	late := time.AfterFunc(patience, leave)
	return func() { late.Stop(); leave() }, nil
}

// launch starts the isolated program.
func (p *Provider) launch(ctx context.Context, b *box) (*isolate.Handle, []sandbox.Stage, error) {
	cfg, closeFiles, err := p.isolation(b)
	if err != nil {
		return nil, nil, err
	}
	defer closeFiles()
	if b.spare != nil {
		err = b.group.Set(cfg.Limits) // it is there
	} else {
		b.group, err = p.groups.Make(b.rec.Sandbox.ID, cfg.Limits)
	}
	if err != nil {
		return nil, nil, err
	}
	cfg.Group = b.group
	cfg.Spare, b.spare = b.spare, nil
	cfg.Gate = func(r isolate.Record) error {
		b.rec.Init = r
		return b.save()
	}
	h, stages, err := isolate.Start(ctx, cfg)
	if err != nil {
		if exit, ok := isolate.ReadExit(b.path("exit")); ok {
			err = fmt.Errorf("%w: %s", err, exit)
		}
		return nil, nil, errors.Join(err, b.kill(ctx))
	}
	b.run, b.rec.Init = h, h.Record()
	return h, stages, nil
}

// kill ends whatever of the sandbox runs and removes its limits. It is carried
// through whatever becomes of ctx.
func (b *box) kill(ctx context.Context) error {
	if b.spare != nil {
		b.spare.Close()
		b.spare = nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	if b.run != nil {
		b.run.Kill()
		if frozen, _ := b.group.Frozen(); frozen {
			b.group.Thaw(ctx) // a v1 freezer holds back even the end
		}
		select {
		case <-b.run.Done():
		case <-ctx.Done():
			return fmt.Errorf("sandbox %s does not end: %w", b.rec.Sandbox.ID, ctx.Err())
		}
		b.run.Close()
		b.run = nil
	}
	b.rec.Init = isolate.Record{}
	if b.group == nil {
		return nil
	}
	return b.group.Remove(ctx)
}

// mind waits, in the background, for the program to end by itself.
func (p *Provider) mind(id string, h *isolate.Handle) {
	p.table.Go(func(ctx context.Context) {
		select {
		case <-ctx.Done():
			return
		case <-h.Done():
		}
		row, err := p.table.Acquire(ctx, id)
		if err != nil {
			return
		}
		defer row.Release()
		if row.Data.run != h {
			return // stopped or deleted meanwhile
		}
		p.ended(ctx, row)
	})
}

// ended enters that the program is over, and why.
func (p *Provider) ended(ctx context.Context, row *sandbox.Row[*box]) {
	b := row.Data
	why := b.lastWords()
	if err := errors.Join(b.kill(ctx), p.change(row, func(sb *sandbox.Sandbox) {
		sb.State, sb.Message = sandbox.Failed, why
	})); err != nil {
		p.cfg.Log.Error("cannot settle an ended sandbox", "sandbox", b.rec.Sandbox.ID, "err", err)
	}
}

// lastWords tells how the program ended.
func (b *box) lastWords() string {
	why := "ended without a trace"
	if exit, ok := isolate.ReadExit(b.path("exit")); ok {
		why = exit.String()
	}
	if b.group != nil {
		if n := b.group.OOMKills(); n > 0 {
			why += fmt.Sprintf(" after running out of memory (%d processes were killed for that); give it a higher memory limit", n)
		}
	}
	return why
}

// destroy removes all that belongs to the sandbox.
func (p *Provider) destroy(row *sandbox.Row[*box]) error {
	b := row.Data
	err := errors.Join(b.kill(context.Background()), removeTree(b.dir))
	if err == nil {
		err = p.drop(b.rec.Layers...)
		b.rec.Layers = nil
	}
	if err != nil {
		// It stays in the table as Deleting, so that it can be tried again.
		row.Change(func(sb *sandbox.Sandbox) { sb.State, sb.Message = sandbox.Deleting, err.Error() })
		return err
	}
	p.freeSlot(b.rec.Slot)
	row.Remove()
	return nil
}
