package kubernetes

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/archive"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/catalog"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// copier keeps copies of disks, and the snapshots that are made of them.
type copier interface {
	// cut copies the disk of a sandbox as it is now, and pins the copy, which can be used after await.
	cut(ctx context.Context, b *box, src *catalog.Source) error
	// await returns when a copy can be used. It fails if the copy is gone.
	await(ctx context.Context, src *catalog.Source) error
	// fill fills the disk of a Pod that waits for it.
	fill(ctx context.Context, b *box) error
	// limits says what a copy lacks, and costs.
	limits() string
	String() string
	Close()

	// These are those of a catalog.Catalog.
	Ready(ctx context.Context) error
	Reserve(owner, name string) (done func(), err error)
	Add(ctx context.Context, e catalog.Entry) error
	Find(ctx context.Context, owner, name string) (catalog.Entry, error)
	Delete(ctx context.Context, owner, name string) error
	List(ctx context.Context, owner string) ([]sandbox.Snapshot, error)
	Pin(key string)
	Release(ctx context.Context, key string)
}

// disks copies the disks of sandboxes.
type disks struct {
	p      *Provider
	copies copier // nil: there are none
}

// openCopies opens what the settings name.
func (d *disks) openCopies() error {
	cfg := d.p.cfg
	switch {
	case cfg.SnapshotClass != "":
		d.copies = d.p.newCuts()
	case cfg.Snapshots.Endpoint != "":
		store, err := archive.New(archive.Config{Bucket: cfg.Snapshots, Hub: d.p.hub.pin, Log: cfg.Log})
		if err != nil {
			return err
		}
		d.copies = &archives{store, d.p.runner}
	}
	return nil
}

// load reads which snapshots there are. Sandboxes do not need it.
func (d *disks) load(ctx context.Context) {
	if d.copies == nil {
		return
	}
	if err := d.copies.Ready(ctx); err != nil && ctx.Err() == nil {
		d.p.cfg.Log.Error("cannot use the snapshot store", "store", d.copies.String(), "error", err)
	}
}

// checkStore returns ErrUnsupported where there is no store.
func (d *disks) checkStore() error {
	if d.copies == nil {
		return fmt.Errorf("%w: snapshots need a store: set kubernetes_snapshot_class or kubernetes_snapshot_endpoint", sandbox.ErrUnsupported)
	}
	return nil
}

// pin keeps what a disk must still be made equal to, until unpin.
func (d *disks) pin(src *catalog.Source) {
	if src != nil && d.copies != nil {
		d.copies.Pin(src.Key())
	}
}

func (d *disks) unpin(ctx context.Context, src *catalog.Source) {
	if src != nil && d.copies != nil {
		d.copies.Release(ctx, src.Key())
	}
}

// fill fills the disk of a Pod that waits for it.
func (d *disks) fill(ctx context.Context, b *box) error {
	if err := d.checkStore(); err != nil {
		return err
	}
	return d.copies.fill(ctx, b)
}

// Snapshot implements sandbox.Snapshotter.
func (d *disks) Snapshot(ctx context.Context, id, name string) (info sandbox.Snapshot, err error) {
	if err := sandbox.CheckName(name); err != nil {
		return info, fmt.Errorf("%w: snapshot: %w", sandbox.ErrInvalid, err)
	}
	if err := d.checkStore(); err != nil {
		return info, err
	}
	var src catalog.Source
	reserved := func() {}
	defer func() { reserved() }()
	err = d.p.with(ctx, id, func(ctx context.Context, row *sandbox.Row[*box]) error {
		if err := d.copies.Ready(ctx); err != nil {
			return err
		}
		info.Owner = row.Sandbox().Spec.Owner
		done, err := d.copies.Reserve(info.Owner, name)
		if err != nil {
			return err
		}
		reserved = done
		src, err = d.copyDisk(ctx, row)
		return err
	})
	if err != nil {
		return sandbox.Snapshot{}, err
	}
	defer d.copies.Release(ctx, src.Key())
	// The sandbox can be used while the copy is completed.
	ctx, done, err := d.p.table.Begin(ctx)
	if err != nil {
		return sandbox.Snapshot{}, err
	}
	defer done()
	if err := d.copies.await(ctx, &src); err != nil {
		return sandbox.Snapshot{}, err
	}
	parent := src.From
	src.From = name
	info = sandbox.Snapshot{Name: name, Owner: info.Owner, Sandbox: id, Parent: parent, Image: src.Named,
		Size: src.Size, Created: time.Now().Round(0)}
	if err := d.copies.Add(ctx, catalog.Entry{Snapshot: info, Source: src}); err != nil {
		return sandbox.Snapshot{}, err
	}
	d.p.cfg.Log.Debug("took a snapshot", "sandbox", id, "snapshot", name, "size", info.Size)
	return info, nil
}

// copyDisk copies the disk of a sandbox, and pins the copy.
func (d *disks) copyDisk(ctx context.Context, row *sandbox.Row[*box]) (src catalog.Source, err error) {
	b, spec := row.Data, row.Sandbox().Spec
	if err := context.Cause(ctx); err != nil {
		return src, err
	}
	if b.rec.Restore != nil {
		return src, fmt.Errorf("%w: the disk of sandbox %q is not restored yet; start it first", sandbox.ErrState, spec.Name)
	}
	src = catalog.Source{From: b.rec.From, Named: cmp.Or(spec.Image, b.rec.Named), Base: cmp.Or(b.rec.Base, spec.Image, d.p.cfg.Image)}
	if row.Sandbox().State == sandbox.Running {
		d.p.runner.waitReported(ctx, b.rec.podName())
		st, _ := d.p.runner.pods.get(b.rec.podName())
		src.Pin = st.imagePin()
	}
	return src, d.copies.cut(ctx, b, &src)
}

// imagePin is the image of a Pod by its content, if the node knows it by a name that others know.
func (st podState) imagePin() string {
	for _, c := range st.Status.ContainerStatuses {
		if c.Name == mainContainer && strings.Contains(c.ImageID, "@sha256:") {
			_, name, found := strings.Cut(c.ImageID, "://")
			if !found {
				name = c.ImageID
			}
			return name
		}
	}
	return ""
}

// find finds a snapshot for a sandbox in a namespace, and pins its copy.
func (d *disks) find(ctx context.Context, owner, name string, place *client) (catalog.Entry, error) {
	e, err := d.copies.Find(ctx, owner, name)
	if err != nil {
		return e, err
	}
	if err = d.copies.await(ctx, &e.Source); err == nil {
		err = checkPlace(e.Source, place)
	}
	if err != nil {
		d.copies.Release(ctx, e.Source.Key())
	}
	return e, err
}

// checkPlace returns ErrInvalid for a copy that cannot be used in a namespace.
func checkPlace(src catalog.Source, place *client) error {
	if namespace, _, ok := strings.Cut(src.Volume, "/"); ok && namespace != place.Namespace {
		return fmt.Errorf("%w: a snapshot in namespace %q cannot be used in %q, the namespace of another tenant",
			sandbox.ErrInvalid, namespace, place.Namespace)
	}
	return nil
}

// Snapshots implements sandbox.Snapshotter.
func (d *disks) Snapshots(ctx context.Context, owner string) ([]sandbox.Snapshot, error) {
	ctx, done, err := d.p.table.Begin(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	if err := d.checkStore(); err != nil {
		return nil, err
	}
	return d.copies.List(ctx, owner)
}

// DeleteSnapshot implements sandbox.Snapshotter.
func (d *disks) DeleteSnapshot(ctx context.Context, owner, name string) error {
	ctx, done, err := d.p.table.Begin(ctx)
	if err != nil {
		return err
	}
	defer done()
	if err := d.checkStore(); err != nil {
		return err
	}
	return d.copies.Delete(ctx, owner, name)
}

// Rollback implements sandbox.Snapshotter.
func (d *disks) Rollback(ctx context.Context, id, name string) error {
	if err := d.checkStore(); err != nil {
		return err
	}
	return d.p.with(ctx, id, func(ctx context.Context, row *sandbox.Row[*box]) error {
		b, sb := row.Data, row.Sandbox()
		e, err := d.find(ctx, sb.Spec.Owner, name, b.api)
		if err != nil {
			return err
		}
		if named := cmp.Or(sb.Spec.Image, b.rec.Named); named != e.Snapshot.Image {
			d.copies.Release(ctx, e.Source.Key())
			return fmt.Errorf("%w: snapshot %q has image %q, the sandbox has %q", sandbox.ErrInvalid, name, e.Snapshot.Image, named)
		}
		// First what we intend: whoever finds the record restores the disk before the next start.
		before := b.rec
		sb.State, sb.Message, sb.Changed = sandbox.Stopped, "", time.Now().Round(0)
		b.rec.Sandbox, b.rec.Restore = sb, &e.Source
		b.rec.From, b.rec.Named, b.rec.Base = e.Source.From, e.Source.Named, e.Source.Base
		if err := d.p.runner.save(ctx, b, nil); err != nil {
			b.rec = before
			d.copies.Release(ctx, e.Source.Key())
			return err
		}
		d.unpin(ctx, before.Restore)
		row.Change(func(now *sandbox.Sandbox) { *now = sb.Clone() })
		if err := d.p.runner.removePod(ctx, b, b.rec.podName(), 0); err != nil {
			return err
		}
		return d.p.startAgain(ctx, row)
	})
}

// Fork implements sandbox.Forker.
func (d *disks) Fork(ctx context.Context, id string, specs []sandbox.Spec) ([]sandbox.Sandbox, error) {
	if err := d.checkStore(); err != nil {
		return nil, err
	}
	if err := sandbox.CheckForks(specs); err != nil {
		return nil, err
	}
	var src catalog.Source
	specs = slices.Clone(specs)
	err := d.p.with(ctx, id, func(ctx context.Context, row *sandbox.Row[*box]) (err error) {
		origin := row.Sandbox().Spec
		for i := range specs {
			specs[i].Image, specs[i].Snapshot = origin.Image, origin.Snapshot
			if err := d.p.check(specs[i]); err != nil {
				return err
			}
		}
		if err := d.copies.Ready(ctx); err != nil {
			return err
		}
		src, err = d.copyDisk(ctx, row)
		return err
	})
	if err != nil {
		return nil, err
	}
	defer d.copies.Release(ctx, src.Key())
	ctx, done, err := d.p.table.Begin(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	if err := d.copies.await(ctx, &src); err != nil {
		return nil, err
	}
	for _, spec := range specs {
		if err := checkPlace(src, d.p.of(spec.Owner)); err != nil {
			return nil, err
		}
	}
	return sandbox.CreateForks(ctx, specs, func(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
		return d.p.create(ctx, spec, &src)
	}, d.p.Delete)
}
