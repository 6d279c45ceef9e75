package kubernetes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/api"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/box"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/catalog"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/cluster"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// Create implements sandbox.Provider.
func (p *Provider) Create(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	ctx, done, err := p.table.Begin(ctx)
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	defer done()
	if err := checkSpec(p.session, spec); err != nil {
		return sandbox.Sandbox{}, err
	}
	if spec.Snapshot == "" {
		return p.create(ctx, spec, nil)
	}
	if err := p.checkStore(); err != nil {
		return sandbox.Sandbox{}, err
	}
	e, err := p.copies.FindFor(ctx, spec.Owner, spec.Snapshot, p.session.ForOwner(spec.Owner))
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

// create creates a sandbox. If src is not nil, its disk starts from that copy, which the caller has pinned.
func (p *Provider) create(ctx context.Context, spec sandbox.Spec, src *catalog.Source) (sandbox.Sandbox, error) {
	began := time.Now().Round(0)
	sb := sandbox.Sandbox{ID: sandbox.NewID(), Spec: spec, State: sandbox.Creating, Created: began, Changed: began}
	sb.Spec.Name = cmp.Or(sb.Spec.Name, sb.ID)
	ctx, row, err := p.table.Add(ctx, sb)
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	defer row.Release()
	rec := box.Record{Sandbox: sb}
	if src != nil {
		rec.From, rec.Named, rec.Base = src.From, src.Named, src.Base
	}
	row.Data = box.New(p.session, rec)
	row.Data.Source = src
	if err := p.build(ctx, row); err != nil {
		return sandbox.Sandbox{}, errors.Join(err, p.remove(ctx, row))
	}
	return row.Sandbox(), nil
}

// checkSpec returns ErrInvalid or ErrUnsupported for a spec that this provider cannot run.
func checkSpec(s *cluster.Session, spec sandbox.Spec) error {
	if err := spec.Validate(); err != nil {
		return err
	}
	kinds := s.Isolation()
	switch {
	case spec.Root:
		return fmt.Errorf("%w: builds of templates with provider kubernetes; use the local provider", sandbox.ErrUnsupported)
	case spec.Isolation != "" && !slices.Contains(kinds, spec.Isolation) && spec.Isolation != cluster.IsolationContainer:
		return fmt.Errorf("%w: isolation %q; use one of %s", sandbox.ErrUnsupported, spec.Isolation, strings.Join(kinds, ", "))
	case spec.Image == "" && s.Config.Image == "" && spec.Snapshot == "":
		return fmt.Errorf("%w: an image is required, because the hub has no default image", sandbox.ErrInvalid)
	case len(spec.Command) == 0 && spec.Server.Port != 0:
		return fmt.Errorf("%w: a server port requires a command, because a cluster does not report the command of an image",
			sandbox.ErrUnsupported)
	}
	return nil
}

// build creates the objects of a new sandbox and starts it.
func (p *Provider) build(ctx context.Context, row *sandbox.Row[*box.Box]) error {
	b, began := row.Data, time.Now()
	if err := context.Cause(ctx); err != nil {
		return err
	}
	plan, err := p.creator.EncodePlan(b)
	if err != nil {
		return err
	}
	secret, err := b.NewSecret(plan)
	if err != nil {
		return err
	}
	if err := p.connector.OpenTunnel(b); err != nil {
		return err
	}
	call, cancel := api.Steady(ctx)
	defer cancel()
	// The record says that the sandbox is being created: if the hub dies, the next one removes it.
	var got cluster.Secret
	if err := b.API.Create(call, cluster.Secrets, secret, &got); err != nil {
		return fmt.Errorf("create the record of the sandbox: %w", cluster.Explain(err))
	}
	b.Loaded(got)
	if err := p.volumes.Prepare(call, b); err != nil {
		return err
	}
	return p.start(ctx, row, []sandbox.Stage{{Name: "record", Took: time.Since(began)}})
}

// spareConnections is how many connections are opened in advance for the first requests to a sandbox: the one
// that binds a warm sandbox to its owner, and the first command.
const spareConnections = 2

// start creates the Pod and waits until the server is ready. If it fails, it removes the Pod.
func (p *Provider) start(ctx context.Context, row *sandbox.Row[*box.Box], stages []sandbox.Stage) error {
	b := row.Data
	if err := context.Cause(ctx); err != nil {
		return err
	}
	stages, err := p.startPod(ctx, b, stages)
	if err != nil {
		return errors.Join(err, p.creator.Remove(ctx, b, 0), p.volumes.DropReplacement(ctx, b))
	}
	p.table.Go(func(ctx context.Context) { b.Tunnel.OpenSpares(ctx, spareConnections) })
	before := b.Record
	if b.ReplacesHome() {
		b.Record.Home = b.HomeClaim()
	}
	b.Source, b.Record.Restore = nil, nil
	err = p.change(ctx, row, func(sb *sandbox.Sandbox) { sb.State, sb.Message, sb.Stages = sandbox.Running, "", stages })
	if err != nil {
		b.Record.Home, b.Record.Restore = before.Home, before.Restore
		return err
	}
	p.unpin(ctx, before.Restore)
	if before.HomeName() != b.Record.HomeName() {
		p.volumes.RemoveReplaced(ctx, b, before.HomeName())
	}
	return nil
}

// startPod runs the stages of a start, and returns how long each took.
func (p *Provider) startPod(ctx context.Context, b *box.Box, stages []sandbox.Stage) ([]sandbox.Stage, error) {
	began := time.Now()
	stage := func(name string) {
		stages = append(stages, sandbox.Stage{Name: name, Took: time.Since(began)})
		began = time.Now()
	}
	if err := p.volumes.ReplaceHome(ctx, b); err != nil {
		return nil, err
	}
	if err := p.creator.Create(ctx, b.API, p.creator.Manifest(b)); err != nil {
		return nil, err
	}
	stage("create")
	if err := p.connector.WaitRunning(ctx, b); err != nil {
		return nil, err
	}
	stage("start")
	if b.FillsDisk() {
		err := p.fill(ctx, b)
		stage("fill")
		if err != nil {
			return nil, err
		}
	}
	if err := p.connector.WaitReady(ctx, b); err != nil {
		return nil, err
	}
	stage("ready")
	return stages, nil
}

// change edits the sandbox in its record, then in the table.
func (p *Provider) change(ctx context.Context, row *sandbox.Row[*box.Box], edit func(*sandbox.Sandbox)) error {
	b, next := row.Data, row.Sandbox()
	edit(&next)
	if next.State != b.Record.Sandbox.State {
		next.Changed = time.Now().Round(0)
	}
	if err := b.SaveSandbox(ctx, next, nil); err != nil {
		return err
	}
	row.Change(func(sb *sandbox.Sandbox) { *sb = next.Clone() })
	return nil
}

// remove removes the sandbox with all its objects. If that fails, the record causes the next hub to retry.
func (p *Provider) remove(ctx context.Context, row *sandbox.Row[*box.Box]) error {
	if err := p.removeObjects(ctx, row.Data); err != nil {
		return err
	}
	row.Remove()
	p.unpin(ctx, row.Data.Record.Restore)
	return nil
}

// removeObjects removes the objects of a sandbox, its record last.
func (p *Provider) removeObjects(ctx context.Context, b *box.Box) error {
	if err := p.creator.Remove(ctx, b, 0); err != nil {
		return err
	}
	if err := p.volumes.RemoveHome(ctx, b); err != nil {
		return err
	}
	call, cancel := api.Steady(ctx)
	defer cancel()
	if err := b.API.Remove(call, cluster.Secrets, b.Record.Sandbox.ID, -1); err != nil {
		return fmt.Errorf("remove the record of the sandbox: %w", err)
	}
	return nil
}
