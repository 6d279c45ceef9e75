package docker

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"

	"github.com/cove-sandbox/cove/internal/sandbox"
)

// snapshotTag is the reference of a snapshot's image. An owner can have any name, a
// reference cannot.
func (i *images) snapshotTag(owner, name string) string {
	sum := sha256.Sum256([]byte(owner))
	return i.snapshotRepository() + hex.EncodeToString(sum[:8]) + ":" + name
}

func (i *images) snapshotRepository() string { return "cove-" + i.instance + "/" }

// isSnapshot reports whether one of the tags of an image is a snapshot's.
func (i *images) isSnapshot(tags []string) bool {
	return slices.ContainsFunc(tags, func(t string) bool { return strings.Contains(t, i.snapshotRepository()) })
}

// deletedTag names an image that lost its snapshot's name.
func (i *images) deletedTag(id string) string { return i.deletedRepository() + digestOf(id) }

func (i *images) deletedRepository() string { return "cove-" + i.instance + "-deleted:" }

// isNameInUse reports whether a tag is a snapshot's or someone else's: an image that is built from a snapshot has our labels, too.
func (i *images) isNameInUse(tag string) bool {
	return !strings.Contains(tag, "<none>") && !strings.Contains(tag, i.deletedRepository())
}

// findSnapshot finds an owner's snapshot, and pins its image.
func (i *images) findSnapshot(ctx context.Context, owner, name string) (src source, info sandbox.Snapshot, err error) {
	missing := fmt.Errorf("%w: %q", sandbox.ErrNoSnapshot, name)
	if sandbox.CheckName(name) != nil {
		return src, info, missing
	}
	i.making.RLock()
	defer i.making.RUnlock()
	got, err := i.engine.ImageInspect(ctx, i.snapshotTag(owner, name))
	switch {
	case errdefs.IsNotFound(err):
		return src, info, missing
	case ctx.Err() != nil:
		return src, info, context.Cause(ctx)
	case err != nil:
		return src, info, fmt.Errorf("find snapshot: %w", err)
	case got.Config == nil:
		return src, info, missing
	}
	src = source{Image: got.ID, From: name}
	if err := errors.Join(decodeLabel(got.Config.Labels[labelSnapshot], &info),
		decodeLabel(got.Config.Labels[labelBase], &src.Base)); err != nil {
		return src, info, fmt.Errorf("read the labels of snapshot %q: %w", name, err)
	}
	if info.Owner != owner || info.Name != name {
		return src, info, missing
	}
	i.pin(got.ID)
	return src, info, nil
}

// Snapshot implements sandbox.Snapshotter.
func (p *Provider) Snapshot(ctx context.Context, id, name string) (sandbox.Snapshot, error) {
	if err := sandbox.CheckName(name); err != nil {
		return sandbox.Snapshot{}, fmt.Errorf("%w: snapshot: %w", sandbox.ErrInvalid, err)
	}
	ctx, row, release, err := p.acquire(ctx, id)
	if err != nil {
		return sandbox.Snapshot{}, err
	}
	defer release()
	b := row.Data
	info := sandbox.Snapshot{Name: name, Owner: row.Sandbox().Spec.Owner, Sandbox: id, Parent: b.rec.From,
		Image: b.rec.Base.Image, Created: time.Now().Round(0)}
	tag := p.images.snapshotTag(info.Owner, name)
	taken := fmt.Errorf("%w: snapshot %q", sandbox.ErrConflict, name)
	if !p.images.reserve(tag) {
		return sandbox.Snapshot{}, taken
	}
	defer p.images.release(tag)
	switch src, _, err := p.images.findSnapshot(ctx, info.Owner, name); {
	case err == nil:
		p.images.unpin(src.Image)
		return sandbox.Snapshot{}, taken
	case !errors.Is(err, sandbox.ErrNoSnapshot):
		return sandbox.Snapshot{}, err
	}
	// The size is known only to the image, whose labels cannot change.
	kept, err := encodeLabel(info)
	if err != nil {
		return sandbox.Snapshot{}, err
	}
	img, err := p.images.commit(ctx, b, tag, map[string]string{labelSnapshot: kept})
	if err != nil {
		return sandbox.Snapshot{}, err
	}
	defer p.images.unpin(img)
	call, cancel := steady(ctx)
	defer cancel()
	if info.Size, err = p.images.layerSize(call, img); err != nil {
		return sandbox.Snapshot{}, err
	}
	return info, nil
}

// layerSize is the size of an image's last layer: what the sandbox had written.
func (i *images) layerSize(ctx context.Context, id string) (int64, error) {
	got, err := i.engine.ImageHistory(ctx, id)
	if err != nil {
		return 0, fmt.Errorf("measure snapshot: %w", err)
	}
	if len(got.Items) == 0 {
		return 0, nil
	}
	return got.Items[0].Size, nil
}

// Snapshots implements sandbox.Snapshotter.
func (p *Provider) Snapshots(ctx context.Context, owner string) ([]sandbox.Snapshot, error) {
	ctx, done, err := p.table.Begin(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	list, err := p.engine.ImageList(ctx, client.ImageListOptions{Filters: p.own()})
	if err != nil {
		return nil, fmt.Errorf("list snapshots: %w", err)
	}
	all := []sandbox.Snapshot{}
	for _, img := range list.Items {
		var info sandbox.Snapshot
		if !p.images.isSnapshot(img.RepoTags) || decodeLabel(img.Labels[labelSnapshot], &info) != nil || owner != "" && owner != info.Owner {
			continue
		}
		if info.Size, err = p.images.layerSize(ctx, img.ID); err != nil {
			if errdefs.IsNotFound(err) { // deleted meanwhile
				continue
			}
			return nil, err
		}
		all = append(all, info)
	}
	slices.SortFunc(all, func(a, b sandbox.Snapshot) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Owner, b.Owner), cmp.Compare(a.Name, b.Name))
	})
	return all, nil
}

// DeleteSnapshot implements sandbox.Snapshotter. Only the name goes at once; the image
// stays while sandboxes stand on it.
func (p *Provider) DeleteSnapshot(ctx context.Context, owner, name string) error {
	ctx, done, err := p.table.Begin(ctx)
	if err != nil {
		return err
	}
	defer done()
	src, _, err := p.images.findSnapshot(ctx, owner, name)
	if err != nil {
		return err
	}
	err = p.images.untag(ctx, src.Image, p.images.snapshotTag(owner, name))
	p.images.unpin(src.Image)
	if err != nil {
		return fmt.Errorf("delete snapshot: %w", err)
	}
	p.images.collect(ctx)
	return nil
}

// untag takes a name from an image that containers may use. An engine refuses to take the last one, or, if forced, may remove the
// containers, too: the image gets another name first.
func (i *images) untag(ctx context.Context, id, tag string) error {
	call, cancel := steady(ctx)
	defer cancel()
	if _, err := i.engine.ImageTag(call, client.ImageTagOptions{Source: id, Target: i.deletedTag(id)}); err != nil {
		return err
	}
	_, err := i.engine.ImageRemove(call, tag, client.ImageRemoveOptions{})
	if errdefs.IsNotFound(err) {
		return nil
	}
	return err
}

// Rollback implements sandbox.Snapshotter.
func (p *Provider) Rollback(ctx context.Context, id, name string) error {
	ctx, row, release, err := p.acquire(ctx, id)
	if err != nil {
		return err
	}
	defer release()
	b := row.Data
	src, _, err := p.images.findSnapshot(ctx, row.Sandbox().Spec.Owner, name)
	if err != nil {
		return err
	}
	defer p.images.unpin(src.Image)
	if src.Base.Image != b.rec.Base.Image {
		return fmt.Errorf("%w: snapshot %q has image %q, the sandbox has %q", sandbox.ErrInvalid, name, src.Base.Image, b.rec.Base.Image)
	}
	// The record says which container is the sandbox: the others are removed by whoever
	// finds them.
	before := b.rec
	b.rec.Sandbox.Spec = row.Sandbox().Spec
	b.rec.Generation, b.rec.Base, b.rec.From, b.rec.Relimit = before.Generation+1, src.Base, src.From, false
	err = p.runner.makeContainer(ctx, b, src)
	if err == nil {
		err = p.change(row, func(sb *sandbox.Sandbox) { sb.State, sb.Message = sandbox.Stopped, "" })
	}
	call, cancel := steady(ctx)
	defer cancel()
	if err != nil {
		err = errors.Join(err, p.runner.removeContainer(call, containerName(id, b.rec.Generation)))
		b.rec = before
		return err
	}
	if err := p.runner.removeContainer(call, before.Container); err != nil {
		return err
	}
	p.images.collect(ctx)
	return p.start(ctx, row, nil)
}

// Fork implements sandbox.Forker.
func (p *Provider) Fork(ctx context.Context, id string, specs []sandbox.Spec) ([]sandbox.Sandbox, error) {
	if err := sandbox.CheckForks(specs); err != nil {
		return nil, err
	}
	src, specs, err := p.copyDisk(ctx, id, specs)
	if err != nil {
		return nil, err
	}
	defer p.images.collect(ctx)
	defer p.images.unpin(src.Image)
	ctx, done, err := p.table.Begin(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	return sandbox.CreateForks(ctx, specs, func(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
		return p.create(ctx, spec, func(context.Context) (source, error) {
			p.images.pin(src.Image)
			return src, nil
		})
	}, p.Delete)
}

// copyDisk commits the disk of a sandbox, and completes the specs of its forks.
func (p *Provider) copyDisk(ctx context.Context, id string, specs []sandbox.Spec) (source, []sandbox.Spec, error) {
	ctx, row, release, err := p.acquire(ctx, id)
	if err != nil {
		return source{}, nil, err
	}
	defer release()
	b, origin := row.Data, row.Sandbox().Spec
	specs = slices.Clone(specs)
	for i := range specs {
		specs[i].Image, specs[i].Snapshot = origin.Image, origin.Snapshot
		if err := p.check(specs[i]); err != nil {
			return source{}, nil, err
		}
	}
	img, err := p.images.commit(ctx, b, "", nil)
	if err != nil {
		return source{}, nil, err
	}
	src := source{Image: img, Base: b.rec.Base, From: b.rec.From}
	src.Base.Committed = true
	return src, specs, nil
}
