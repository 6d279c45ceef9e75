package kubernetes

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/box"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/catalog"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/disks"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// snapshots takes snapshots and forks of sandboxes, and restores them.
type snapshots struct {
	p      *Provider
	copies *disks.Copies // nil: unsupported
}

// checkStore returns ErrUnsupported without a store.
func (s *snapshots) checkStore() error {
	if s.copies == nil {
		return fmt.Errorf("%w: snapshots require a store; set kubernetes_snapshot_class or kubernetes_snapshot_endpoint",
			sandbox.ErrUnsupported)
	}
	return nil
}

// pin keeps the copy to which a disk must be reset, until unpin.
func (s *snapshots) pin(src *catalog.Source) {
	if src != nil && s.copies != nil {
		s.copies.Pin(src.Key())
	}
}

func (s *snapshots) unpin(ctx context.Context, src *catalog.Source) {
	if src != nil && s.copies != nil {
		s.copies.Release(ctx, src.Key())
	}
}

// fill fills the disk of a Pod that waits for it.
func (s *snapshots) fill(ctx context.Context, b *box.Box) error {
	if err := s.checkStore(); err != nil {
		return err
	}
	return s.copies.Fill(ctx, b)
}

// Snapshot implements sandbox.Snapshotter.
func (s *snapshots) Snapshot(ctx context.Context, id, name string) (info sandbox.Snapshot, err error) {
	if err := sandbox.CheckName(name); err != nil {
		return info, fmt.Errorf("%w: snapshot: %w", sandbox.ErrInvalid, err)
	}
	if err := s.checkStore(); err != nil {
		return info, err
	}
	var src catalog.Source
	reserved := func() {}
	defer func() { reserved() }()
	err = s.p.with(ctx, id, func(ctx context.Context, row *sandbox.Row[*box.Box]) error {
		if err := s.copies.Ready(ctx); err != nil {
			return err
		}
		info.Owner = row.Sandbox().Spec.Owner
		done, err := s.copies.Reserve(info.Owner, name)
		if err != nil {
			return err
		}
		reserved = done
		src, err = s.copies.Take(ctx, row.Data)
		return err
	})
	if err != nil {
		return sandbox.Snapshot{}, err
	}
	defer s.copies.Release(ctx, src.Key())
	// The sandbox can be used while the copy is completed.
	ctx, done, err := s.p.table.Begin(ctx)
	if err != nil {
		return sandbox.Snapshot{}, err
	}
	defer done()
	if err := s.copies.Await(ctx, &src); err != nil {
		return sandbox.Snapshot{}, err
	}
	parent := src.From
	src.From = name
	info = sandbox.Snapshot{Name: name, Owner: info.Owner, Sandbox: id, Parent: parent, Image: src.Named,
		Size: src.Size, Created: time.Now().Round(0)}
	if err := s.copies.Add(ctx, catalog.Entry{Snapshot: info, Source: src}); err != nil {
		return sandbox.Snapshot{}, err
	}
	s.p.session.Config.Log.Debug("took a snapshot", "sandbox", id, "snapshot", name, "size", info.Size)
	return info, nil
}

// Snapshots implements sandbox.Snapshotter.
func (s *snapshots) Snapshots(ctx context.Context, owner string) ([]sandbox.Snapshot, error) {
	ctx, done, err := s.p.table.Begin(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	if err := s.checkStore(); err != nil {
		return nil, err
	}
	return s.copies.List(ctx, owner)
}

// DeleteSnapshot implements sandbox.Snapshotter.
func (s *snapshots) DeleteSnapshot(ctx context.Context, owner, name string) error {
	ctx, done, err := s.p.table.Begin(ctx)
	if err != nil {
		return err
	}
	defer done()
	if err := s.checkStore(); err != nil {
		return err
	}
	return s.copies.Delete(ctx, owner, name)
}

// Rollback implements sandbox.Snapshotter.
func (s *snapshots) Rollback(ctx context.Context, id, name string) error {
	if err := s.checkStore(); err != nil {
		return err
	}
	return s.p.with(ctx, id, func(ctx context.Context, row *sandbox.Row[*box.Box]) error {
		b, sb := row.Data, row.Sandbox()
		e, err := s.copies.FindFor(ctx, sb.Spec.Owner, name, b.API)
		if err != nil {
			return err
		}
		if named := cmp.Or(sb.Spec.Image, b.Record.Named); named != e.Snapshot.Image {
			s.copies.Release(ctx, e.Source.Key())
			return fmt.Errorf("%w: snapshot %q has image %q, the sandbox has %q", sandbox.ErrInvalid, name, e.Snapshot.Image, named)
		}
		// Record the intention first: a hub that adopts the sandbox restores the disk before the next start.
		before := b.Record
		sb.State, sb.Message, sb.Changed = sandbox.Stopped, "", time.Now().Round(0)
		b.Record.Sandbox, b.Record.Restore = sb, &e.Source
		b.Record.From, b.Record.Named, b.Record.Base = e.Source.From, e.Source.Named, e.Source.Base
		if err := b.Save(ctx, nil); err != nil {
			b.Record = before
			s.copies.Release(ctx, e.Source.Key())
			return err
		}
		s.unpin(ctx, before.Restore)
		row.Change(func(now *sandbox.Sandbox) { *now = sb.Clone() })
		if err := s.p.creator.Remove(ctx, b, 0); err != nil {
			return err
		}
		return s.p.restart(ctx, row)
	})
}

// Fork implements sandbox.Forker.
func (s *snapshots) Fork(ctx context.Context, id string, specs []sandbox.Spec) ([]sandbox.Sandbox, error) {
	if err := s.checkStore(); err != nil {
		return nil, err
	}
	if err := sandbox.CheckForks(specs); err != nil {
		return nil, err
	}
	var src catalog.Source
	specs = slices.Clone(specs)
	err := s.p.with(ctx, id, func(ctx context.Context, row *sandbox.Row[*box.Box]) (err error) {
		origin := row.Sandbox().Spec
		for i := range specs {
			specs[i].Image, specs[i].Snapshot = origin.Image, origin.Snapshot
			if err := checkSpec(s.p.session, specs[i]); err != nil {
				return err
			}
		}
		if err := s.copies.Ready(ctx); err != nil {
			return err
		}
		src, err = s.copies.Take(ctx, row.Data)
		return err
	})
	if err != nil {
		return nil, err
	}
	defer s.copies.Release(ctx, src.Key())
	ctx, done, err := s.p.table.Begin(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	if err := s.copies.Await(ctx, &src); err != nil {
		return nil, err
	}
	for _, spec := range specs {
		if err := disks.CheckNamespace(src, s.p.session.ForOwner(spec.Owner)); err != nil {
			return nil, err
		}
	}
	return sandbox.CreateForks(ctx, specs, func(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
		return s.p.create(ctx, spec, &src)
	}, s.p.Delete)
}
