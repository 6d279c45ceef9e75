package kubernetes

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/cove-sandbox/cove/internal/container"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/archive"
	"github.com/cove-sandbox/cove/internal/sandbox"
	"github.com/cove-sandbox/cove/internal/tunnel"
)

// copyPlan is the plan of a Pod that runs nothing, beside that of the sandbox in its Secret.
const copyPlan = "copy.json"

// disks copies the disks of sandboxes, by way of a store.
type disks struct {
	p        *Provider
	archives *archive.Store // nil: there is none
}

// checkStore returns ErrUnsupported where there is no store.
func (d *disks) checkStore() error {
	if d.archives == nil {
		return fmt.Errorf("%w: snapshots need a store: set kubernetes_snapshot_endpoint", sandbox.ErrUnsupported)
	}
	return nil
}

// Snapshot implements sandbox.Snapshotter.
func (d *disks) Snapshot(ctx context.Context, id, name string) (info sandbox.Snapshot, err error) {
	if err := sandbox.CheckName(name); err != nil {
		return info, fmt.Errorf("%w: snapshot: %w", sandbox.ErrInvalid, err)
	}
	if err := d.checkStore(); err != nil {
		return info, err
	}
	err = d.p.with(ctx, id, func(ctx context.Context, row *sandbox.Row[*box]) error {
		if err := d.archives.Ready(ctx); err != nil {
			return err
		}
		b, owner := row.Data, row.Sandbox().Spec.Owner
		done, err := d.archives.Reserve(owner, name)
		if err != nil {
			return err
		}
		defer done()
		src, size, err := d.copyDisk(ctx, row)
		if err != nil {
			return err
		}
		parent := src.From
		src.From = name
		info = sandbox.Snapshot{Name: name, Owner: owner, Sandbox: id, Parent: parent, Image: src.Named, Size: size, Created: time.Now().Round(0)}
		err = d.archives.Add(ctx, archive.Entry{Snapshot: info, Source: src})
		d.archives.Release(ctx, src.Archive)
		if err == nil {
			d.p.cfg.Log.Debug("took a snapshot", "sandbox", b.rec.Sandbox.ID, "snapshot", name, "size", size)
		}
		return err
	})
	return info, err
}

// copyDisk copies the disk of a sandbox to the store, and pins the copy.
func (d *disks) copyDisk(ctx context.Context, row *sandbox.Row[*box]) (src archive.Source, size int64, err error) {
	b, sb := row.Data, row.Sandbox()
	if err := context.Cause(ctx); err != nil {
		return src, 0, err
	}
	spec := sb.Spec
	src = archive.Source{From: b.rec.From, Named: cmp.Or(spec.Image, b.rec.Named), Base: cmp.Or(b.rec.Base, spec.Image, d.p.cfg.Image)}
	from := b.tunnel
	switch {
	case b.rec.Restore != nil:
		return src, 0, fmt.Errorf("%w: the disk of sandbox %q is not restored yet; start it first", sandbox.ErrState, spec.Name)
	case sb.State == sandbox.Running:
		st, _ := d.p.runner.pods.get(b.rec.podName())
		src.Pin = st.imagePin()
	case !d.p.cfg.Persistent:
		return src, 0, fmt.Errorf("%w: the disk of a Pod that has ended cannot be read", sandbox.ErrState)
	default: // the home is all that is left of the disk
		held, end, err := d.p.runner.hold(ctx, b)
		if err != nil {
			return src, 0, err
		}
		defer end()
		from = held
	}
	// Twice, since a home that is kept apart has as much room as the rest.
	limit := 2*cmp.Or(spec.Resources.Disk, d.p.cfg.Defaults.Disk) + 64<<20
	src.Archive, size, err = d.archives.Upload(ctx, spec.Owner, limit, func(ctx context.Context, w io.Writer) error {
		switch err := from.Save(ctx, w); {
		case err == nil || ctx.Err() != nil || errors.Is(err, sandbox.ErrExhausted):
			return err
		case errors.Is(err, tunnel.ErrRefused):
			return fmt.Errorf("%w: %w", sandbox.ErrState, err)
		default:
			return fmt.Errorf("%w: the copy of the disk was cut short: %w", sandbox.ErrUnavailable, err)
		}
	})
	return src, size, err
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

// hold runs a Pod that has the home of a sandbox, and does nothing with it, until end.
func (r *runner) hold(ctx context.Context, b *box) (c *tunnel.Client, end func(), err error) {
	plan := r.plan(b.rec.Sandbox.Spec)
	plan.Hold, plan.Command, plan.Env = true, nil, nil
	data, err := json.Marshal(plan)
	if err != nil {
		return nil, nil, err
	}
	if err := r.save(ctx, b, map[string][]byte{copyPlan: data}); err != nil {
		return nil, nil, err
	}
	holder := r.makePod(b)
	name := b.rec.Sandbox.ID + "-copy"
	holder.Metadata.Name, holder.Spec.Containers[0].Image, holder.Spec.Containers[0].ReadinessProbe = name, r.cfg.Programs, nil
	keep := func(name string) bool { return !strings.HasPrefix(name, "volume-") }
	holder.Spec.Volumes = slices.DeleteFunc(holder.Spec.Volumes, func(v volumeSpec) bool { return !keep(v.Name) })
	main := &holder.Spec.Containers[0]
	main.VolumeMounts = slices.DeleteFunc(main.VolumeMounts, func(m mountSpec) bool { return !keep(m.Name) })
	for _, v := range holder.Spec.Volumes {
		if v.Secret != nil {
			v.Secret.Items[slices.IndexFunc(v.Secret.Items, func(k keyPath) bool { return k.Key == container.PlanName })].Key = copyPlan
		}
	}
	// One that an earlier copy has left would be in the way.
	if err := r.endPod(ctx, b.api, name, 0); err != nil {
		return nil, nil, err
	}
	end = func() {
		if err := r.endPod(ctx, b.api, name, 0); err != nil {
			r.cfg.Log.Warn("cannot remove the Pod that has copied a disk; the next start of the hub does", "pod", name, "error", err)
		}
	}
	if err := r.createPod(ctx, b.api, holder); err != nil {
		return nil, nil, err
	}
	ip, err := r.waitPod(ctx, b, name)
	if err != nil {
		end()
		return nil, nil, err
	}
	c = b.tunnel.Via(func(ctx context.Context) (net.Conn, error) { return r.dial(ctx, b.api, name, ip) })
	if err := r.waitTunnel(ctx, c, name); err != nil {
		end()
		return nil, nil, err
	}
	return c, end, nil
}

// waitTunnel waits until the first process of a Pod lets us in.
func (r *runner) waitTunnel(ctx context.Context, c *tunnel.Client, name string) error {
	deadline, cancel := context.WithTimeout(ctx, r.cfg.ReadyTimeout)
	defer cancel()
	changed, forget := r.pods.watch(name)
	defer forget()
	for pause := minPause; ; pause = min(pause*5/4, maxPause) {
		_, err := c.Stats(deadline)
		st, ok := r.pods.get(name)
		why, ended := st.ended()
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case ended || !ok:
			return fmt.Errorf("%w: its first process has ended: %s", sandbox.ErrNotReady, why)
		case deadline.Err() != nil:
			return fmt.Errorf("%w: its first process does not answer: %w", sandbox.ErrNotReady, err)
		}
		select {
		case <-deadline.Done():
		case <-changed:
		case <-time.After(pause):
		}
	}
}

// fill fills the disk of a Pod that waits for it.
func (d *disks) fill(ctx context.Context, b *box) error {
	ctx, cancel := context.WithTimeout(ctx, archive.CopyTime)
	defer cancel()
	if err := d.p.runner.waitTunnel(ctx, b.tunnel, b.rec.podName()); err != nil {
		return err
	}
	r, err := d.archives.Open(ctx, b.src.Archive)
	if err != nil {
		return err
	}
	defer r.Close()
	err = b.tunnel.Fill(ctx, r)
	if err == nil || ctx.Err() != nil || errors.Is(err, sandbox.ErrUnavailable) || errors.Is(err, sandbox.ErrExhausted) {
		return err
	}
	return fmt.Errorf("%w: its disk cannot be filled: %w", sandbox.ErrNotReady, err)
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
	return d.archives.List(ctx, owner)
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
	return d.archives.Delete(ctx, owner, name)
}

// Rollback implements sandbox.Snapshotter.
func (d *disks) Rollback(ctx context.Context, id, name string) error {
	if err := d.checkStore(); err != nil {
		return err
	}
	return d.p.with(ctx, id, func(ctx context.Context, row *sandbox.Row[*box]) error {
		b, sb := row.Data, row.Sandbox()
		e, err := d.archives.Find(ctx, sb.Spec.Owner, name)
		if err != nil {
			return err
		}
		if named := cmp.Or(sb.Spec.Image, b.rec.Named); named != e.Snapshot.Image {
			d.archives.Release(ctx, e.Source.Archive)
			return fmt.Errorf("%w: snapshot %q has image %q, the sandbox has %q", sandbox.ErrInvalid, name, e.Snapshot.Image, named)
		}
		// First what we intend: whoever finds the record restores the disk before the next start.
		before := b.rec
		sb.State, sb.Message, sb.Changed = sandbox.Stopped, "", time.Now().Round(0)
		b.rec.Sandbox, b.rec.Restore = sb, &e.Source
		b.rec.From, b.rec.Named, b.rec.Base = e.Source.From, e.Source.Named, e.Source.Base
		if err := d.p.runner.save(ctx, b, nil); err != nil {
			b.rec = before
			d.archives.Release(ctx, e.Source.Archive)
			return err
		}
		if before.Restore != nil {
			d.archives.Release(ctx, before.Restore.Archive)
		}
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
	var src archive.Source
	specs = slices.Clone(specs)
	err := d.p.with(ctx, id, func(ctx context.Context, row *sandbox.Row[*box]) (err error) {
		origin := row.Sandbox().Spec
		for i := range specs {
			specs[i].Image, specs[i].Snapshot = origin.Image, origin.Snapshot
			if err := d.p.check(specs[i]); err != nil {
				return err
			}
		}
		if err := d.archives.Ready(ctx); err != nil {
			return err
		}
		src, _, err = d.copyDisk(ctx, row)
		return err
	})
	if err != nil {
		return nil, err
	}
	defer d.archives.Release(ctx, src.Archive)
	ctx, done, err := d.p.table.Begin(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	return sandbox.CreateForks(ctx, specs, func(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
		return d.p.create(ctx, spec, &src)
	}, d.p.Delete)
}
