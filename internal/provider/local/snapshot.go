package local

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/sandbox"
)

// snapshot is what is kept of one, in a file of its own in a folder per owner.
type snapshot struct {
	Snapshot sandbox.Snapshot `json:"snapshot"`
	stack
}

type named struct{ owner, name string }

const jsonExt = ".json"

func (p *Provider) snapshotDir(owner string) string {
	return filepath.Join(p.cfg.Dir, "snapshots", folderOf(owner))
}

// Snapshot implements sandbox.Snapshotter.
func (p *Provider) Snapshot(ctx context.Context, id, name string) (sandbox.Snapshot, error) {
	ctx, done, err := p.table.Begin(ctx)
	if err != nil {
		return sandbox.Snapshot{}, err
	}
	defer done()
	if err := sandbox.CheckName(name); err != nil {
		return sandbox.Snapshot{}, fmt.Errorf("%w: snapshot: %w", sandbox.ErrInvalid, err)
	}
	row, err := p.table.AcquireIdle(ctx, id)
	if err != nil {
		return sandbox.Snapshot{}, err
	}
	defer row.Release()
	sb := row.Sandbox()
	key := named{sb.Spec.Owner, name}
	if err := p.reserve(key); err != nil {
		return sandbox.Snapshot{}, err
	}
	disk, err := p.take(ctx, row)
	if err != nil {
		p.settle(key, nil)
		return sandbox.Snapshot{}, err
	}
	s := &snapshot{stack: disk, Snapshot: sandbox.Snapshot{Name: name, Owner: key.owner, Sandbox: id, Parent: row.Data.rec.From,
		Image: disk.Ref, Created: time.Now()}}
	if err := p.keep(s); err != nil {
		p.settle(key, nil)
		return sandbox.Snapshot{}, errors.Join(err, p.drop(disk.Layers...))
	}
	p.settle(key, s)
	return s.Snapshot, nil
}

// keep measures a snapshot and puts it on record.
func (p *Provider) keep(s *snapshot) error {
	used, err := measure(p.store.path(s.Layers[len(s.Layers)-1]), 0)
	if err != nil {
		return err
	}
	s.Snapshot.Size = used.bytes
	dir := p.snapshotDir(s.Snapshot.Owner)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return saveJSON(dir, s.Snapshot.Name+jsonExt, s, true)
}

// reserve takes a name for a snapshot, settle fills it or frees it again.
func (p *Provider) reserve(key named) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, taken := p.snaps[key]; taken {
		return fmt.Errorf("%w: snapshot %q; delete that one first or use another name", sandbox.ErrConflict, key.name)
	}
	p.snaps[key] = nil
	return nil
}

func (p *Provider) settle(key named, s *snapshot) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s == nil {
		delete(p.snaps, key)
		return
	}
	p.snaps[key] = s
}

// borrow finds a snapshot and holds its layers for the caller.
func (p *Provider) borrow(owner, name string) (stack, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.snaps[named{owner, name}]
	if s == nil {
		return stack{}, fmt.Errorf("%w: %q", sandbox.ErrNoSnapshot, name)
	}
	for _, l := range s.Layers {
		p.refs[l]++
	}
	st := s.stack
	st.name = name
	return st, nil
}

// Snapshots implements sandbox.Snapshotter.
func (p *Provider) Snapshots(ctx context.Context, owner string) ([]sandbox.Snapshot, error) {
	_, done, err := p.table.Begin(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	p.mu.Lock()
	defer p.mu.Unlock()
	all := []sandbox.Snapshot{}
	for key, s := range p.snaps {
		if s != nil && (owner == "" || owner == key.owner) {
			all = append(all, s.Snapshot)
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
	key := named{owner, name}
	p.mu.Lock()
	s := p.snaps[key]
	if s != nil {
		// Off the record first: without it the next hub removes the rest.
		if err = os.Remove(filepath.Join(p.snapshotDir(owner), name+jsonExt)); err == nil || notThere(err) {
			delete(p.snaps, key)
			err = nil
		}
	}
	p.mu.Unlock()
	if s == nil {
		return fmt.Errorf("%w: %q", sandbox.ErrNoSnapshot, name)
	}
	if err != nil {
		return err
	}
	return errors.Join(syncDir(p.snapshotDir(owner)), p.drop(s.Layers...))
}

var errUnreadable = errors.New("record cannot be read")

// loadSnapshots reads the records there are and returns the bases they stand on.
func (p *Provider) loadSnapshots() (bases []string, err error) {
	files, err := filepath.Glob(filepath.Join(p.cfg.Dir, "snapshots", "*", "*"+jsonExt))
	if err != nil {
		return nil, err
	}
	var bad error
	for _, f := range files {
		s := &snapshot{}
		data, err := os.ReadFile(f)
		if err == nil {
			err = json.Unmarshal(data, s)
		}
		key := named{s.Snapshot.Owner, s.Snapshot.Name}
		if err == nil && (key.name != strings.TrimSuffix(filepath.Base(f), jsonExt) || len(s.Layers) == 0) {
			err = errors.New("it is the record of something else")
		}
		if err != nil {
			bad = errors.Join(bad, fmt.Errorf("%w: %s: %w", errUnreadable, f, err))
			continue
		}
		p.snaps[key] = s
		p.hold(s.Layers...)
		bases = append(bases, s.Base)
	}
	return bases, bad
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
	sb := row.Sandbox()
	disk, err := p.borrow(sb.Spec.Owner, name)
	if err != nil {
		return err
	}
	if ref := row.Data.rec.Ref; disk.Ref != ref {
		p.giveBack(disk)
		return fmt.Errorf("%w: snapshot %q stands on image %q, sandbox %q on %q", sandbox.ErrInvalid, name, disk.Ref, sb.Spec.Name, ref)
	}
	began := time.Now()
	if err := p.swap(ctx, row, disk); err != nil {
		p.giveBack(disk)
		return err
	}
	return p.start(ctx, row, sandbox.Stage{Name: "disk", Took: time.Since(began)})
}

// swap ends what runs and puts another disk under the sandbox, whose layers it
// takes over from the caller unless it fails.
func (p *Provider) swap(ctx context.Context, row *sandbox.Row[*box], disk stack) error {
	b := row.Data
	layer, err := p.makeUpper(&box{rec: record{Sandbox: b.rec.Sandbox, Image: disk.Image}})
	if err != nil {
		return err
	}
	if err := b.kill(ctx); err != nil {
		return errors.Join(err, p.drop(layer))
	}
	before := b.rec
	b.rec.Base, b.rec.Image, b.rec.From = disk.Base, disk.Image, disk.name
	b.rec.Layers = append(slices.Clone(disk.Layers), layer)
	// With the record the disk has changed; the old one goes after that.
	if err := p.change(row, func(sb *sandbox.Sandbox) { sb.State, sb.Message = sandbox.Stopped, "" }); err != nil {
		before.Sandbox = b.rec.Sandbox
		b.rec = before
		return errors.Join(err, p.drop(layer))
	}
	b.usage = usage{}
	p.giveBack(stack{Layers: before.Layers})
	return nil
}

// forksAtOnce is how many forks are started at the same time.
const forksAtOnce = 8

// Fork implements sandbox.Forker.
func (p *Provider) Fork(ctx context.Context, id string, specs []sandbox.Spec) ([]sandbox.Sandbox, error) {
	ctx, done, err := p.table.Begin(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	if len(specs) < 1 || len(specs) > sandbox.MaxForks {
		return nil, fmt.Errorf("%w: %d forks; ask for 1 to %d", sandbox.ErrInvalid, len(specs), sandbox.MaxForks)
	}
	row, err := p.table.AcquireIdle(ctx, id)
	if err != nil {
		return nil, err
	}
	origin, from := row.Sandbox().Spec, row.Data.rec.From
	specs = slices.Clone(specs)
	for i := range specs {
		specs[i].Image, specs[i].Snapshot = origin.Image, origin.Snapshot
		err = errors.Join(err, p.check(specs[i]))
	}
	var disk stack
	if err == nil {
		disk, err = p.take(ctx, row)
	}
	// The original goes on while the forks are started.
	row.Release()
	if err != nil {
		return nil, err
	}
	defer p.giveBack(disk)
	disk.name = from
	return p.forkAll(ctx, specs, disk)
}

func (p *Provider) forkAll(ctx context.Context, specs []sandbox.Spec, disk stack) ([]sandbox.Sandbox, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	made := make([]sandbox.Sandbox, len(specs))
	slots := make(chan struct{}, forksAtOnce)
	var wg sync.WaitGroup
	for i, spec := range specs {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			if ctx.Err() != nil {
				return
			}
			sb, err := p.make(ctx, spec, disk)
			if err != nil {
				cancel(err)
				return
			}
			made[i] = sb
		})
	}
	wg.Wait()
	if ctx.Err() == nil {
		return made, nil
	}
	err := context.Cause(ctx)
	for _, sb := range made {
		if sb.ID != "" {
			if gone := p.Delete(context.WithoutCancel(ctx), sb.ID); gone != nil && !errors.Is(gone, sandbox.ErrNotFound) {
				err = errors.Join(err, gone)
			}
		}
	}
	return nil, err
}
