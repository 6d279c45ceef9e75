package kubernetes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

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
	began := time.Now().Round(0)
	sb := sandbox.Sandbox{ID: sandbox.NewID(), Spec: spec, State: sandbox.Creating, Created: began, Changed: began}
	sb.Spec.Name = cmp.Or(sb.Spec.Name, sb.ID)
	ctx, row, err := p.table.Add(ctx, sb)
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	defer row.Release()
	row.Data = &box{rec: record{Sandbox: sb}}
	if err := p.build(ctx, row); err != nil {
		return sandbox.Sandbox{}, errors.Join(err, p.scrap(ctx, row))
	}
	return row.Sandbox(), nil
}

// check returns ErrInvalid or ErrUnsupported for a spec that cannot be run here.
func (s *session) check(spec sandbox.Spec) error {
	if err := spec.Validate(); err != nil {
		return err
	}
	switch {
	case spec.Isolation != "" && !slices.Contains(s.isolation(), spec.Isolation) && spec.Isolation != Kind:
		return fmt.Errorf("%w: isolation %q; use one of %s", sandbox.ErrUnsupported, spec.Isolation, strings.Join(s.isolation(), ", "))
	case spec.Snapshot != "":
		return fmt.Errorf("%w: snapshots", sandbox.ErrUnsupported)
	case spec.Image == "" && s.cfg.Image == "":
		return fmt.Errorf("%w: an image is required, because the hub has no default image", sandbox.ErrInvalid)
	case len(spec.Command) == 0 && spec.Server.Port != 0:
		return fmt.Errorf("%w: a server port without a command; name the command, since a cluster does not tell what the image's own is", sandbox.ErrUnsupported)
	}
	return nil
}

// build makes the objects of a new sandbox and starts it.
func (p *Provider) build(ctx context.Context, row *sandbox.Row[*box]) error {
	b, began := row.Data, time.Now()
	if err := context.Cause(ctx); err != nil {
		return err
	}
	fresh, err := p.runner.newSecret(b)
	if err != nil {
		return err
	}
	if err := p.runner.connect(b); err != nil {
		return err
	}
	call, cancel := steady(ctx)
	defer cancel()
	// From here on, whoever finds the Secret knows that it is to be removed.
	var got secret
	if err := p.client.create(call, secrets, fresh, &got); err != nil {
		return fmt.Errorf("create the record of the sandbox: %w", explain(err))
	}
	b.remember(got)
	if err := p.volumes.use(call, b); err != nil {
		return err
	}
	return p.start(ctx, row, []sandbox.Stage{{Name: "record", Took: time.Since(began)}})
}

// explain turns a refusal of the API server into an error that the caller can act on.
func explain(err error) error {
	switch {
	case hasCode(err, http.StatusForbidden) && strings.Contains(err.Error(), "exceeded quota"):
		return fmt.Errorf("%w: %w", sandbox.ErrExhausted, err)
	case hasCode(err, http.StatusUnprocessableEntity), hasCode(err, http.StatusBadRequest):
		return fmt.Errorf("%w: %w", sandbox.ErrInvalid, err)
	}
	return err
}

// start creates the Pod and waits until the server is ready. If it fails, the Pod is removed.
func (p *Provider) start(ctx context.Context, row *sandbox.Row[*box], stages []sandbox.Stage) error {
	b, began := row.Data, time.Now()
	if err := context.Cause(ctx); err != nil {
		return err
	}
	stage := func(name string) {
		stages = append(stages, sandbox.Stage{Name: name, Took: time.Since(began)})
		began = time.Now()
	}
	err := p.runner.createPod(ctx, b)
	if err == nil {
		stage("create")
		err = p.runner.waitRunning(ctx, b)
	}
	if err == nil {
		stage("start")
		err = p.runner.waitReady(ctx, b)
	}
	if err != nil {
		return errors.Join(err, p.runner.removePod(ctx, b, b.rec.podName(), 0))
	}
	stage("ready")
	return p.change(ctx, row, func(sb *sandbox.Sandbox) { sb.State, sb.Message, sb.Stages = sandbox.Running, "", stages })
}

func (r *runner) createPod(ctx context.Context, b *box) error {
	call, cancel := steady(ctx)
	defer cancel()
	var made podState
	if err := r.client.create(call, pods, r.makePod(b), &made); err != nil {
		return fmt.Errorf("create Pod: %w", explain(err))
	}
	r.pods.add(made)
	return nil
}

// change edits the sandbox, in its record and then in the table.
func (p *Provider) change(ctx context.Context, row *sandbox.Row[*box], edit func(*sandbox.Sandbox)) error {
	b, next := row.Data, row.Sandbox()
	edit(&next)
	if next.State != b.rec.Sandbox.State {
		next.Changed = time.Now().Round(0)
	}
	if err := p.store(ctx, b, next); err != nil {
		return err
	}
	row.Change(func(sb *sandbox.Sandbox) { *sb = next.Clone() })
	return nil
}

// store writes the sandbox into its record, or leaves that as it was.
func (p *Provider) store(ctx context.Context, b *box, next sandbox.Sandbox) error {
	before := b.rec.Sandbox
	b.rec.Sandbox = next
	err := p.runner.save(ctx, b, nil)
	if err != nil {
		b.rec.Sandbox = before
	}
	return err
}

// scrap removes the sandbox with everything that belongs to it. If that fails, the record
// says that it must be tried again.
func (p *Provider) scrap(ctx context.Context, row *sandbox.Row[*box]) error {
	if err := p.runner.removeAll(ctx, row.Data); err != nil {
		return err
	}
	row.Remove()
	return nil
}

// removeAll removes the objects of a sandbox, its record last.
func (r *runner) removeAll(ctx context.Context, b *box) error {
	if err := r.removePod(ctx, b, b.rec.podName(), 0); err != nil {
		return err
	}
	call, cancel := steady(ctx)
	defer cancel()
	if r.cfg.Persistent {
		if err := r.client.remove(call, claims, b.rec.Sandbox.ID, -1); err != nil {
			return fmt.Errorf("remove PersistentVolumeClaim: %w", err)
		}
	}
	if err := r.client.remove(call, secrets, b.rec.Sandbox.ID, -1); err != nil {
		return fmt.Errorf("remove the record of the sandbox: %w", err)
	}
	return nil
}

// killGrace is the grace of a Pod that is removed: the shortest that lets the kubelet confirm the
// end, which none at all does not.
const killGrace = time.Second

// How long a node may take to confirm the end of a Pod, and how often we ask.
const (
	confirmTime = time.Minute
	confirmTick = time.Second
)

// removePod removes a Pod and returns when it is gone.
func (r *runner) removePod(ctx context.Context, b *box, name string, grace time.Duration) error {
	if b != nil {
		b.where.set("", "")
	}
	grace = max(grace, killGrace)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace+confirmTime+callTime)
	defer cancel()
	changed, forget := r.pods.watch(name)
	defer forget()
	if err := r.client.remove(ctx, pods, name, grace); err != nil {
		return fmt.Errorf("remove Pod: %w", err)
	}
	began, forced := time.Now(), false
	for {
		if r.pods.gone(name) {
			return nil
		}
		select {
		case <-changed:
			continue
		case <-ctx.Done():
			return fmt.Errorf("remove Pod: its node does not confirm its end: %w", context.Cause(ctx))
		case <-time.After(confirmTick):
		}
		var st podState
		switch err := r.client.get(ctx, pods, name, &st); {
		case isMissing(err):
			r.pods.drop(name)
			return nil
		case err == nil && !forced && time.Since(began) > grace+confirmTime:
			r.cfg.Log.Warn("a node does not confirm the end of a Pod; removing it all the same", "pod", name)
			forced = true
			if err := r.client.remove(ctx, pods, name, 0); err != nil {
				return fmt.Errorf("remove Pod: %w", err)
			}
		}
	}
}
