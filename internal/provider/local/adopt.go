package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/cove-sandbox/cove/internal/isolate"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

func (p *Provider) dir(id string) string { return filepath.Join(p.store.boxes, id) }

// adopt takes over what an earlier hub left, in whatever state it is really in.
func (p *Provider) adopt(ctx context.Context) error {
	entries, err := os.ReadDir(p.store.boxes)
	if err != nil {
		return err
	}
	known, bases := []string{}, []string{filepath.Base(p.root.Base)}
	whole := true // all records could be read
	for _, e := range entries {
		b := &box{dir: p.dir(e.Name()), group: p.groups.Group(e.Name())}
		if b.rec, err = load(b.dir); err != nil && !notThere(err) {
			// Not ours to judge: keep it for its owner to look at.
			p.cfg.Log.Error("cannot read the record of a sandbox; it is left alone", "sandbox", e.Name(), "err", err)
			known, whole = append(known, e.Name()), false
			continue
		}
		if notThere(err) || b.rec.Sandbox.State == sandbox.Creating || b.rec.Sandbox.State == sandbox.Deleting {
			if err := p.discard(ctx, b); err != nil {
				return fmt.Errorf("clean up sandbox %s: %w", e.Name(), err)
			}
			continue
		}
		if err := p.adoptOne(ctx, b); err != nil {
			return fmt.Errorf("adopt sandbox %s: %w", e.Name(), err)
		}
		known, bases = append(known, e.Name()), append(bases, b.rec.Base)
	}
	// Groups without a sandbox are leftovers: below our own place all is ours.
	for _, id := range p.groups.IDs() {
		if !slices.Contains(known, id) {
			if err := p.groups.Group(id).Remove(ctx); err != nil {
				return err
			}
		}
	}
	more, err := p.loadSnapshots()
	if errors.Is(err, errUnreadable) {
		p.cfg.Log.Error("cannot read the record of a snapshot; it is left alone", "err", err)
		whole, err = false, nil
	}
	if err != nil {
		return err
	}
	if err := p.tidyVolumes(); err != nil {
		return err
	}
	if !whole {
		return nil // what an unreadable record stands on is not known
	}
	if err := p.dropLayers(); err != nil {
		return err
	}
	return p.dropBases(append(bases, more...))
}

// discard removes a sandbox that was never finished or is half removed.
func (p *Provider) discard(ctx context.Context, b *box) error {
	h, err := isolate.Adopt(b.rec.Init)
	if err != nil && !errors.Is(err, isolate.ErrGone) {
		return err
	}
	b.run = h
	return errors.Join(b.kill(ctx), removeTree(b.dir))
}

func (p *Provider) adoptOne(ctx context.Context, b *box) error {
	if p.mapped {
		p.slots[b.rec.Slot] = true
	}
	p.hold(b.rec.Layers...)
	sb := &b.rec.Sandbox
	for _, l := range b.rec.Layers {
		if !exists(p.store.path(l)) {
			// A machine that went down may keep the record and lose the rest.
			sb.State, sb.Message = sandbox.Failed, "its disk was lost when the machine went down; delete it"
		}
	}
	if sb.State == sandbox.Running || sb.State == sandbox.Paused {
		h, err := isolate.Adopt(b.rec.Init)
		switch {
		case err == nil:
			b.run = h
			frozen, _ := b.group.Frozen()
			if frozen && sb.State == sandbox.Running {
				// The hub was killed while it paused it, or took a snapshot.
				if err := b.group.Thaw(ctx); err != nil {
					return err
				}
				frozen = false
			}
			sb.State = sandbox.Running
			if frozen {
				sb.State = sandbox.Paused
			}
		case errors.Is(err, isolate.ErrGone):
			// It ended, or the machine was restarted, while no hub looked.
			sb.State, sb.Message, sb.Changed = sandbox.Failed, b.lastWords(), time.Now()
			if err := b.kill(ctx); err != nil {
				return err
			}
		default:
			return err
		}
		if err := p.enter(b); err != nil {
			return err
		}
	}
	if _, err := p.table.Adopt(*sb, b); err != nil {
		return err
	}
	if b.run != nil {
		p.mind(sb.ID, b.run)
	}
	return nil
}

// dropBases removes the bases that no sandbox stands on.
func (p *Provider) dropBases(used []string) error {
	entries, err := os.ReadDir(filepath.Join(p.cfg.Dir, "base"))
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !slices.Contains(used, e.Name()) {
			if err := removeTree(filepath.Join(p.cfg.Dir, "base", e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}
