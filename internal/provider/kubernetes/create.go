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

	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/api"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/catalog"
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
	if spec.Snapshot == "" {
		return p.create(ctx, spec, nil)
	}
	if err := p.checkStore(); err != nil {
		return sandbox.Sandbox{}, err
	}
	e, err := p.find(ctx, spec.Owner, spec.Snapshot, p.of(spec.Owner))
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	defer p.copies.Release(ctx, e.Source.Key())
	if spec.Image != "" && spec.Image != e.Snapshot.Image {
		return sandbox.Sandbox{}, fmt.Errorf("%w: snapshot %q has image %q, not %q", sandbox.ErrInvalid,
			spec.Snapshot, e.Snapshot.Image, spec.Image)
	}
	return p.create(ctx, spec, &e.Source)
}

// create creates a sandbox, whose disk starts from src, if there is one. The caller has pinned it.
func (p *Provider) create(ctx context.Context, spec sandbox.Spec, src *catalog.Source) (sandbox.Sandbox, error) {
	began := time.Now().Round(0)
	sb := sandbox.Sandbox{ID: sandbox.NewID(), Spec: spec, State: sandbox.Creating, Created: began, Changed: began}
	sb.Spec.Name = cmp.Or(sb.Spec.Name, sb.ID)
	ctx, row, err := p.table.Add(ctx, sb)
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	defer row.Release()
	row.Data = &box{rec: record{Sandbox: sb}, api: p.of(sb.Spec.Owner), src: src}
	if src != nil {
		row.Data.rec.From, row.Data.rec.Named, row.Data.rec.Base = src.From, src.Named, src.Base
	}
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
	case spec.Image == "" && s.cfg.Image == "" && spec.Snapshot == "":
		return fmt.Errorf("%w: an image is required, because the hub has no default image", sandbox.ErrInvalid)
	case len(spec.Command) == 0 && spec.Server.Port != 0:
		return fmt.Errorf("%w: a server port without a command; name the command, since a cluster does not tell "+
			"what the image's own is", sandbox.ErrUnsupported)
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
	call, cancel := api.Steady(ctx)
	defer cancel()
	// From here on, whoever finds the Secret knows that it is to be removed.
	var got secret
	if err := b.api.Create(call, secrets, fresh, &got); err != nil {
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
	case api.HasCode(err, http.StatusForbidden) && strings.Contains(err.Error(), "exceeded quota"):
		return fmt.Errorf("%w: %w", sandbox.ErrExhausted, err)
	case api.HasCode(err, http.StatusForbidden) && boundedByRange(err):
		return fmt.Errorf("%w: %w", sandbox.ErrInvalid, err)
	case api.HasCode(err, http.StatusUnprocessableEntity), api.HasCode(err, http.StatusBadRequest):
		return fmt.Errorf("%w: %w", sandbox.ErrInvalid, err)
	}
	return err
}

// boundedByRange reports whether a LimitRange refuses a Pod. The API server says so in words only.
func boundedByRange(err error) bool {
	text := err.Error()
	return strings.Contains(text, "maximum ") && strings.Contains(text, " usage per ") ||
		strings.Contains(text, "minimum ") && strings.Contains(text, " usage per ")
}

// spares is how many connections are ready for the first requests into a sandbox: that which tells
// a warm one whose it is, and the first command.
const spares = 2

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
	err := p.volumes.remakeHome(ctx, b)
	if err == nil {
		err = p.runner.createPod(ctx, b.api, p.runner.makePod(b))
	}
	if err == nil {
		stage("create")
		err = p.runner.waitRunning(ctx, b)
	}
	if err == nil {
		stage("start")
		if b.filled() {
			err = p.fill(ctx, b)
			stage("fill")
		}
	}
	if err == nil {
		err = p.runner.waitReady(ctx, b)
	}
	if err != nil {
		return errors.Join(err, p.runner.removePod(ctx, b, b.rec.podName(), 0), p.volumes.dropHome(ctx, b))
	}
	stage("ready")
	p.table.Go(func(ctx context.Context) { b.tunnel.OpenSpares(ctx, spares) })
	before := b.rec
	if b.remade() {
		b.rec.Home = b.home()
	}
	b.src, b.rec.Restore = nil, nil
	err = p.change(ctx, row, func(sb *sandbox.Sandbox) { sb.State, sb.Message, sb.Stages = sandbox.Running, "", stages })
	if err != nil {
		b.rec.Home, b.rec.Restore = before.Home, before.Restore
		return err
	}
	p.unpin(ctx, before.Restore)
	if before.homeName() != b.rec.homeName() {
		p.volumes.forgetHome(ctx, b, before.homeName())
	}
	return nil
}

func (r *runner) createPod(ctx context.Context, place *client, p pod) error {
	call, cancel := api.Steady(ctx)
	defer cancel()
	var made podState
	if err := place.Create(call, pods, p, &made); err != nil {
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
	p.unpin(ctx, row.Data.rec.Restore)
	return nil
}

// removeAll removes the objects of a sandbox, its record last.
func (r *runner) removeAll(ctx context.Context, b *box) error {
	if err := r.removePod(ctx, b, b.rec.podName(), 0); err != nil {
		return err
	}
	if r.cfg.Persistent {
		if err := r.volumes.removeClaim(ctx, b.api, b.rec.homeName()); err != nil {
			return fmt.Errorf("remove PersistentVolumeClaim: %w", err)
		}
	}
	call, cancel := api.Steady(ctx)
	defer cancel()
	if err := b.api.Remove(call, secrets, b.rec.Sandbox.ID, -1); err != nil {
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

// removePod removes a Pod of a sandbox and returns when it is gone.
func (r *runner) removePod(ctx context.Context, b *box, name string, grace time.Duration) error {
	b.leave()
	return r.endPod(ctx, b.api, name, grace)
}

// endPod removes a Pod and returns when it is gone.
func (r *runner) endPod(ctx context.Context, place *client, name string, grace time.Duration) error {
	if r.pods.idle(name) {
		grace = 0 // nothing has to end, and a kubelet that waits for an image would confirm nothing until it has it
	} else {
		grace = max(grace, killGrace)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace+confirmTime+api.CallTime)
	defer cancel()
	changed, forget := r.pods.watch(name)
	defer forget()
	if err := place.Remove(ctx, pods, name, grace); err != nil {
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
		switch err := place.Get(ctx, pods, name, &st); {
		case api.IsMissing(err):
			r.pods.drop(name)
			return nil
		case err == nil && !forced && time.Since(began) > grace+confirmTime:
			r.cfg.Log.Warn("a node does not confirm the end of a Pod; removing it all the same", "pod", name)
			forced = true
			if err := place.Remove(ctx, pods, name, 0); err != nil {
				return fmt.Errorf("remove Pod: %w", err)
			}
		}
	}
}
