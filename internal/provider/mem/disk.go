package mem

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/cove-sandbox/cove/internal/sandbox"
)

type named struct{ owner, name string }

// snapshot is a stored disk. Its files never change.
type snapshot struct {
	info  sandbox.Snapshot
	files map[string][]byte
}

func (p *Provider) snapshot(owner, name string) (snapshot, error) {
	p.cfg.Store.mu.Lock()
	defer p.cfg.Store.mu.Unlock()
	s, ok := p.cfg.Store.snaps[named{owner, name}]
	if !ok {
		return s, fmt.Errorf("%w: %q", sandbox.ErrNoSnapshot, name)
	}
	return s, nil
}

// Snapshot implements sandbox.Snapshotter.
func (p *Provider) Snapshot(ctx context.Context, id, name string) (sandbox.Snapshot, error) {
	return p.save(ctx, id, name, false)
}

// SaveLayer implements sandbox.Layerer.
func (p *Provider) SaveLayer(ctx context.Context, id, name string) (sandbox.Snapshot, error) {
	return p.save(ctx, id, name, true)
}

func (p *Provider) save(ctx context.Context, id, name string, layer bool) (sandbox.Snapshot, error) {
	if err := sandbox.CheckName(name); err != nil {
		return sandbox.Snapshot{}, fmt.Errorf("%w: snapshot: %w", sandbox.ErrInvalid, err)
	}
	row, err := p.table.AcquireIdle(ctx, id)
	if err != nil {
		return sandbox.Snapshot{}, err
	}
	defer row.Release()
	s := snapshot{files: row.Data.disk.copy(), info: sandbox.Snapshot{Name: name, Owner: row.Sandbox().Spec.Owner,
		Sandbox: id, Parent: row.Data.from, Created: time.Now()}}
	s.info.Layer = layer
	for file, data := range s.files {
		if was, ok := row.Data.kept[file]; !layer || !ok || !bytes.Equal(was, data) {
			s.info.Size += int64(len(data))
		}
	}
	store, key := p.cfg.Store, named{s.info.Owner, name}
	store.mu.Lock()
	defer store.mu.Unlock()
	if _, ok := store.snaps[key]; ok {
		return sandbox.Snapshot{}, fmt.Errorf("%w: snapshot %q", sandbox.ErrConflict, name)
	}
	store.snaps[key] = s
	if layer {
		row.Data.kept = s.files
	}
	return s.info, nil
}

// Snapshots implements sandbox.Snapshotter.
func (p *Provider) Snapshots(ctx context.Context, owner string) ([]sandbox.Snapshot, error) {
	_, done, err := p.table.Begin(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	p.cfg.Store.mu.Lock()
	defer p.cfg.Store.mu.Unlock()
	all := []sandbox.Snapshot{}
	for _, s := range p.cfg.Store.snaps {
		if owner == "" || owner == s.info.Owner {
			all = append(all, s.info)
		}
	}
	slices.SortFunc(all, func(a, b sandbox.Snapshot) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Owner, b.Owner), cmp.Compare(a.Name, b.Name))
	})
	return all, nil
}

// DeleteSnapshot implements sandbox.Snapshotter.
func (p *Provider) DeleteSnapshot(ctx context.Context, owner, name string) error {
	_, done, err := p.table.Begin(ctx)
	if err != nil {
		return err
	}
	defer done()
	if _, err := p.snapshot(owner, name); err != nil {
		return err
	}
	p.cfg.Store.mu.Lock()
	defer p.cfg.Store.mu.Unlock()
	delete(p.cfg.Store.snaps, named{owner, name})
	return nil
}

// Rollback implements sandbox.Snapshotter.
func (p *Provider) Rollback(ctx context.Context, id, name string) error {
	ctx, done, err := p.table.Begin(ctx)
	if err != nil {
		return err
	}
	defer done()
	row, err := p.table.AcquireIdle(ctx, id)
	if err != nil {
		return err
	}
	defer row.Release()
	s, err := p.snapshot(row.Sandbox().Spec.Owner, name)
	if err != nil {
		return err
	}
	b := row.Data
	b.kill()
	b.disk.mu.Lock()
	b.disk.files, b.was, b.from = maps.Clone(s.files), s.files, name
	b.disk.mu.Unlock()
	p.change(row, func(sb *sandbox.Sandbox) { sb.State, sb.Message = sandbox.Stopped, "" })
	return p.start(ctx, row)
}

// Fork implements sandbox.Forker.
func (p *Provider) Fork(ctx context.Context, id string, specs []sandbox.Spec) ([]sandbox.Sandbox, error) {
	ctx, done, err := p.table.Begin(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	if err := sandbox.CheckForks(specs); err != nil {
		return nil, err
	}
	row, err := p.table.AcquireIdle(ctx, id)
	if err != nil {
		return nil, err
	}
	origin := row.Sandbox().Spec
	disk := snapshot{files: row.Data.disk.copy(), info: sandbox.Snapshot{Name: row.Data.from}}
	row.Release()
	specs = slices.Clone(specs)
	for i := range specs {
		specs[i].Image, specs[i].Snapshot = origin.Image, origin.Snapshot
		if err := p.check(specs[i]); err != nil {
			return nil, err
		}
	}
	return sandbox.CreateForks(ctx, specs, func(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
		return p.create(ctx, spec, disk)
	}, p.Delete)
}

// Diff implements sandbox.Differ.
func (p *Provider) Diff(ctx context.Context, id string, limit int) (sandbox.Diff, error) {
	row, err := p.table.AcquireIdle(ctx, id)
	if err != nil {
		return sandbox.Diff{}, err
	}
	defer row.Release()
	is, was := row.Data.disk.copy(), row.Data.was
	d := sandbox.Diff{Changes: []sandbox.Change{}}
	for name, data := range is {
		before, ok := was[name]
		switch {
		case !ok:
			d.Changes = append(d.Changes, sandbox.Change{Path: "/" + name, Kind: sandbox.Added, Size: int64(len(data))})
		case !bytes.Equal(before, data):
			d.Changes = append(d.Changes, sandbox.Change{Path: "/" + name, Kind: sandbox.Modified, Size: int64(len(data))})
		}
	}
	for name := range was {
		if _, ok := is[name]; !ok {
			d.Changes = append(d.Changes, sandbox.Change{Path: "/" + name, Kind: sandbox.Removed})
		}
	}
	slices.SortFunc(d.Changes, func(a, b sandbox.Change) int { return cmp.Compare(a.Path, b.Path) })
	if limit = max(limit, 0); len(d.Changes) > limit {
		d.Changes, d.Truncated = d.Changes[:limit], true
	}
	return d, nil
}

// useVolume creates a missing volume of a spec.
func (p *Provider) useVolume(owner, name string) {
	p.cfg.Store.mu.Lock()
	defer p.cfg.Store.mu.Unlock()
	if _, ok := p.cfg.Store.vols[named{owner, name}]; !ok {
		p.cfg.Store.vols[named{owner, name}] = sandbox.VolumeInfo{Name: name, Owner: owner, Created: time.Now()}
	}
}

// CreateVolume implements sandbox.Volumer.
func (p *Provider) CreateVolume(ctx context.Context, owner, name string) (sandbox.VolumeInfo, error) {
	_, done, err := p.table.Begin(ctx)
	if err != nil {
		return sandbox.VolumeInfo{}, err
	}
	defer done()
	if err := sandbox.CheckName(name); err != nil {
		return sandbox.VolumeInfo{}, fmt.Errorf("%w: volume: %w", sandbox.ErrInvalid, err)
	}
	p.cfg.Store.mu.Lock()
	defer p.cfg.Store.mu.Unlock()
	if _, ok := p.cfg.Store.vols[named{owner, name}]; ok {
		return sandbox.VolumeInfo{}, fmt.Errorf("%w: volume %q", sandbox.ErrConflict, name)
	}
	v := sandbox.VolumeInfo{Name: name, Owner: owner, Created: time.Now(), Sandboxes: []string{}}
	p.cfg.Store.vols[named{owner, name}] = v
	return v, nil
}

// Volumes implements sandbox.Volumer.
func (p *Provider) Volumes(ctx context.Context, owner string) ([]sandbox.VolumeInfo, error) {
	boxes, err := p.table.List(sandbox.Filter{})
	if err != nil {
		return nil, err
	}
	p.cfg.Store.mu.Lock()
	defer p.cfg.Store.mu.Unlock()
	all := []sandbox.VolumeInfo{}
	for _, v := range p.cfg.Store.vols {
		if owner == "" || owner == v.Owner {
			v.Sandboxes = sandbox.VolumeUsers(boxes, v.Owner, v.Name)
			all = append(all, v)
		}
	}
	slices.SortFunc(all, func(a, b sandbox.VolumeInfo) int {
		return cmp.Or(cmp.Compare(a.Owner, b.Owner), cmp.Compare(a.Name, b.Name))
	})
	return all, nil
}

// DeleteVolume implements sandbox.Volumer.
func (p *Provider) DeleteVolume(ctx context.Context, owner, name string) error {
	p.cfg.Store.mu.Lock()
	defer p.cfg.Store.mu.Unlock()
	boxes, err := p.table.List(sandbox.Filter{})
	if err != nil {
		return err
	}
	if _, ok := p.cfg.Store.vols[named{owner, name}]; !ok {
		return fmt.Errorf("%w: %q", sandbox.ErrNoVolume, name)
	}
	if ids := sandbox.VolumeUsers(boxes, owner, name); len(ids) > 0 {
		return fmt.Errorf("%w: volume %q is used by %s; delete that first", sandbox.ErrState, name, strings.Join(ids, ", "))
	}
	delete(p.cfg.Store.vols, named{owner, name})
	return nil
}
