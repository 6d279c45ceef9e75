package local

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/cove-sandbox/cove/internal/provider/local/internal/disk"
	"github.com/cove-sandbox/cove/internal/provider/local/internal/image"
	"github.com/cove-sandbox/cove/internal/sandbox"
	"github.com/cove-sandbox/cove/internal/system/isolate"
)

// Snapshot implements sandbox.Snapshotter.
func (p *Provider) Snapshot(ctx context.Context, id, name string) (sandbox.Snapshot, error) {
	return p.save(ctx, id, name, false)
}

// SaveLayer implements sandbox.Layerer.
func (p *Provider) SaveLayer(ctx context.Context, id, name string) (sandbox.Snapshot, error) {
	return p.save(ctx, id, name, true)
}

func (p *Provider) save(ctx context.Context, id, name string, layer bool) (sandbox.Snapshot, error) {
	ctx, done, err := p.runner.Begin(ctx)
	if err != nil {
		return sandbox.Snapshot{}, err
	}
	defer done()
	if err := sandbox.CheckName(name); err != nil {
		return sandbox.Snapshot{}, fmt.Errorf("%w: snapshot: %w", sandbox.ErrInvalid, err)
	}
	held, err := p.runner.Hold(ctx, id)
	if err != nil {
		return sandbox.Snapshot{}, err
	}
	defer held.Release()
	owner := held.Sandbox().Spec.Owner
	if err := p.snapshots.Reserve(owner, name); err != nil {
		return sandbox.Snapshot{}, err
	}
	d, err := held.CopyDisk(ctx)
	if err != nil {
		p.snapshots.Cancel(owner, name)
		return sandbox.Snapshot{}, err
	}
	info := sandbox.Snapshot{Name: name, Owner: owner, Sandbox: id, Parent: d.From, Created: time.Now(), Layer: layer}
	written, fresh, err := held.Written()
	if info.Size = written; layer {
		info.Size = fresh
	}
	if err == nil {
		info, err = p.snapshots.Keep(info, d)
	}
	if err != nil {
		p.snapshots.Cancel(owner, name)
		return sandbox.Snapshot{}, errors.Join(err, p.disks.Drop(d))
	}
	if layer {
		held.Layered(written)
	}
	return info, nil
}

// Snapshots implements sandbox.Snapshotter.
func (p *Provider) Snapshots(ctx context.Context, owner string) ([]sandbox.Snapshot, error) {
	_, done, err := p.runner.Begin(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	return p.snapshots.List(owner), nil
}

// DeleteSnapshot implements sandbox.Snapshotter.
func (p *Provider) DeleteSnapshot(ctx context.Context, owner, name string) error {
	_, done, err := p.runner.Begin(ctx)
	if err != nil {
		return err
	}
	defer done()
	return p.snapshots.Delete(owner, name)
}

// Rollback implements sandbox.Snapshotter.
func (p *Provider) Rollback(ctx context.Context, id, name string) error {
	ctx, done, err := p.runner.Begin(ctx)
	if err != nil {
		return err
	}
	defer done()
	held, err := p.runner.Hold(ctx, id)
	if err != nil {
		return err
	}
	defer held.Release()
	spec := held.Sandbox().Spec
	d, err := p.snapshots.Get(spec.Owner, name)
	if err != nil {
		return err
	}
	if ref := held.Disk().Ref; d.Ref != ref {
		p.disks.Release(d)
		return fmt.Errorf("%w: snapshot %q was taken on image %q, and sandbox %q is on %q", sandbox.ErrInvalid, name, d.Ref, spec.Name, ref)
	}
	began := time.Now()
	if err := held.ReplaceDisk(ctx, d); err != nil {
		p.disks.Release(d)
		return err
	}
	return held.Start(ctx, sandbox.Stage{Name: "disk", Took: time.Since(began)})
}

// Fork implements sandbox.Forker.
func (p *Provider) Fork(ctx context.Context, id string, specs []sandbox.Spec) ([]sandbox.Sandbox, error) {
	ctx, done, err := p.runner.Begin(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	if err := sandbox.CheckForks(specs); err != nil {
		return nil, err
	}
	held, err := p.runner.Hold(ctx, id)
	if err != nil {
		return nil, err
	}
	origin := held.Sandbox().Spec
	specs = slices.Clone(specs)
	for i := range specs {
		specs[i].Image, specs[i].Snapshot = origin.Image, origin.Snapshot
		err = errors.Join(err, p.runner.Check(specs[i]))
	}
	var d disk.Disk
	if err == nil {
		d, err = held.CopyDisk(ctx)
	}
	held.Release() // the original is usable while the forks start
	if err != nil {
		return nil, err
	}
	defer p.disks.Release(d)
	return sandbox.CreateForks(ctx, specs, func(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
		return p.runner.Create(ctx, spec, d)
	}, p.runner.Delete)
}

// Diff implements sandbox.Differ.
func (p *Provider) Diff(ctx context.Context, id string, limit int) (sandbox.Diff, error) {
	ctx, done, err := p.runner.Begin(ctx)
	if err != nil {
		return sandbox.Diff{}, err
	}
	defer done()
	held, err := p.runner.Hold(ctx, id)
	if err != nil {
		return sandbox.Diff{}, err
	}
	defer held.Release()
	var volumes []string
	for _, v := range held.Sandbox().Spec.Volumes {
		volumes = append(volumes, v.Target)
	}
	return p.disks.Diff(ctx, held.Disk(), volumes, limit)
}

// Volumes implements sandbox.Volumer.
func (p *Provider) Volumes(ctx context.Context, owner string) ([]sandbox.VolumeInfo, error) {
	ctx, done, err := p.runner.Begin(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	sandboxes, err := p.runner.List(ctx, sandbox.Filter{})
	if err != nil {
		return nil, err
	}
	return p.volumes.List(owner, sandboxes)
}

// CreateVolume implements sandbox.Volumer.
func (p *Provider) CreateVolume(ctx context.Context, owner, name string) (sandbox.VolumeInfo, error) {
	_, done, err := p.runner.Begin(ctx)
	if err != nil {
		return sandbox.VolumeInfo{}, err
	}
	defer done()
	return p.volumes.Create(owner, name)
}

// DeleteVolume implements sandbox.Volumer.
func (p *Provider) DeleteVolume(ctx context.Context, owner, name string) error {
	ctx, done, err := p.runner.Begin(ctx)
	if err != nil {
		return err
	}
	defer done()
	return p.volumes.Delete(owner, name, func() ([]sandbox.Sandbox, error) { return p.runner.List(ctx, sandbox.Filter{}) })
}

// Export implements sandbox.Exporter.
func (p *Provider) Export(ctx context.Context, id string, w io.Writer) error {
	ctx, done, err := p.runner.Begin(ctx)
	if err != nil {
		return err
	}
	defer done()
	held, err := p.runner.Hold(ctx, id)
	if err != nil {
		return err
	}
	if !p.disks.HasImages() {
		held.Release()
		return fmt.Errorf("%w: export", sandbox.ErrUnsupported)
	}
	d, err := held.CopyDisk(ctx)
	spec := held.Sandbox().Spec
	held.Release()
	if err != nil {
		return err
	}
	defer p.disks.Release(d)
	return p.disks.Export(ctx, w, d, imageConfig(spec, d.Image))
}

// imageConfig describes the exported image of a sandbox. It excludes the environment of the spec, which may contain
// secrets.
func imageConfig(spec sandbox.Spec, from *disk.Image) image.Export {
	var img disk.Image
	if from != nil {
		img = *from
	}
	e := image.Export{Command: slices.Clone(img.Command), Env: img.Env, Workdir: cmp.Or(spec.Workdir, img.Workdir, isolate.Home),
		User: fmt.Sprintf("%d:%d", isolate.UID, isolate.GID)}
	if len(spec.Command) > 0 {
		e.Command = slices.Clone(spec.Command)
	}
	if len(e.Command) > 0 {
		e.Command = append(e.Command, spec.Args...)
	}
	return e
}

// ImportImage implements sandbox.Importer.
func (p *Provider) ImportImage(ctx context.Context, path, ref string) error {
	return p.disks.Images().Import(ctx, path, ref)
}

// ResolveImage implements sandbox.Imager.
func (p *Provider) ResolveImage(ctx context.Context, owner, ref string, fresh bool) (sandbox.ImageConfig, error) {
	ctx, done, err := p.runner.Begin(ctx)
	if err != nil {
		return sandbox.ImageConfig{}, err
	}
	defer done()
	return p.disks.Images().Describe(ctx, ref, owner, fresh)
}

// ImageUse implements sandbox.ImageCounter.
func (p *Provider) ImageUse(ctx context.Context, owner, prefix string) (int64, error) {
	_, done, err := p.runner.Begin(ctx)
	if err != nil {
		return 0, err
	}
	defer done()
	return p.disks.Images().Use(owner, prefix)
}

// Images implements sandbox.Importer.
func (p *Provider) Images(ctx context.Context, prefix string) ([]sandbox.ImageInfo, error) {
	return p.disks.Images().List(ctx, prefix)
}

// DeleteImage implements sandbox.Importer.
func (p *Provider) DeleteImage(ctx context.Context, ref string) error {
	return p.disks.Images().Delete(ctx, ref)
}
