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

// snapshotTag returns the reference of the image of a snapshot. It contains a hash of the owner, whose name may be no valid
// reference.
func (i *images) snapshotTag(owner, name string) string {
	sum := sha256.Sum256([]byte(owner))
	return i.snapshotRepository() + hex.EncodeToString(sum[:8]) + ":" + name
}

func (i *images) snapshotRepository() string { return "cove-" + i.instance + "/" }

// isSnapshot reports whether one of the tags of an image belongs to a snapshot.
func (i *images) isSnapshot(tags []string) bool {
	return slices.ContainsFunc(tags, func(t string) bool { return strings.Contains(t, i.snapshotRepository()) })
}

// deletedTag returns the name of the image of a deleted snapshot.
func (i *images) deletedTag(id string) string { return i.deletedRepository() + digestOf(id) }

func (i *images) deletedRepository() string { return "cove-" + i.instance + "-deleted:" }

// isNameInUse reports whether a tag belongs to a snapshot or a user. Images that users build from a snapshot also have the
// labels of the hub.
func (i *images) isNameInUse(tag string) bool {
	return !strings.Contains(tag, "<none>") && !strings.Contains(tag, i.deletedRepository())
}

// findSnapshot finds a snapshot and pins its image.
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
	// The size is not part of the label: only the finished image has it, whose labels cannot change.
	label, err := encodeLabel(info)
	if err != nil {
		return sandbox.Snapshot{}, err
	}
	img, err := p.images.commit(ctx, b, tag, map[string]string{labelSnapshot: label})
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

// layerSize returns the size of the last layer of an image: the data that the sandbox has written.
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
			if errdefs.IsNotFound(err) { // it was deleted
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

// DeleteSnapshot implements sandbox.Snapshotter. It removes the name immediately; the image is kept while sandboxes use
// it.
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

// untag removes a name of an image that containers may use. The image gets another name first, because an engine refuses
// to remove the last one or, if forced, may remove the containers, too.
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
	// The record names the container of the sandbox: a later hub removes all others.
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

// copyDisk commits the disk of a sandbox and completes the specs of its forks.
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
