package pool

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"time"

	"github.com/cove-sandbox/cove/internal/hub/internal/trash"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// Wrap returns a provider that uses the pool: it hides members, claims one for a create if it fits, and
// hides the history of a claimed sandbox. It also hides sandboxes in the bin, and empties the bin if it
// stands in the way of a call. The pool and the bin use the wrapped provider.
func Wrap(inner sandbox.Provider, p *Pool, bin *trash.Bin) sandbox.Provider {
	return &provider{inner, p, bin}
}

type provider struct {
	sandbox.Provider
	pool *Pool
	bin  *trash.Bin
}

// hidden reports whether callers do not see a sandbox.
func hidden(sb sandbox.Sandbox) bool { return Hidden(sb) || trash.Holds(sb) }

var (
	_ sandbox.Logger      = (*provider)(nil)
	_ sandbox.Stater      = (*provider)(nil)
	_ sandbox.Egresser    = (*provider)(nil)
	_ sandbox.Snapshotter = (*provider)(nil)
	_ sandbox.Forker      = (*provider)(nil)
	_ sandbox.Differ      = (*provider)(nil)
	_ sandbox.Volumer     = (*provider)(nil)
	_ sandbox.Exporter    = (*provider)(nil)
	_ sandbox.Importer    = (*provider)(nil)
	_ sandbox.Saver       = (*provider)(nil)

	_ sandbox.ImageCounter = (*provider)(nil)
	_ sandbox.Layerer      = (*provider)(nil)
	_ sandbox.Imager       = (*provider)(nil)
)

// shown returns a sandbox in the form for its owner.
func shown(sb sandbox.Sandbox) sandbox.Sandbox {
	since := Created(sb)
	if since.Equal(sb.Created) {
		return sb
	}
	sb.Created = since
	if sb.Changed.Before(since) {
		sb.Changed, sb.Stages = since, nil
	}
	return sb
}

// Create implements sandbox.Provider.
func (p *provider) Create(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	began := time.Now()
	if want, ok := p.pool.cfg.Size()[spec.Environment]; ok && want.Size > 0 && !Waits(spec) {
		sb, ok, err := p.pool.Claim(ctx, spec.Environment, want.print(), Binding{Spec: spec})
		if err != nil {
			return sandbox.Sandbox{}, err
		}
		if ok {
			sb = shown(sb)
			sb.Stages = []sandbox.Stage{{Name: "claim", Took: time.Since(began)}}
			return sb, nil
		}
	}
	sb, err := p.Provider.Create(ctx, spec)
	if errors.Is(err, sandbox.ErrExhausted) && p.bin.Purge(ctx, func(sandbox.Sandbox) bool { return true }) {
		return p.Provider.Create(ctx, spec)
	}
	return sb, err
}

// Get implements sandbox.Provider.
func (p *provider) Get(ctx context.Context, id string) (sandbox.Sandbox, error) {
	sb, err := p.Provider.Get(ctx, id)
	if err == nil && hidden(sb) {
		return sandbox.Sandbox{}, fmt.Errorf("%w: %s", sandbox.ErrNotFound, id)
	}
	return shown(sb), err
}

// List implements sandbox.Provider.
func (p *provider) List(ctx context.Context, f sandbox.Filter) ([]sandbox.Sandbox, error) {
	list, err := p.Provider.List(ctx, f)
	if err != nil {
		return nil, err
	}
	list = slices.DeleteFunc(list, hidden)
	sorted := true
	for i := range list {
		list[i] = shown(list[i])
		sorted = sorted && (i == 0 || !list[i].Created.Before(list[i-1].Created))
	}
	if !sorted {
		slices.SortStableFunc(list, func(a, b sandbox.Sandbox) int {
			return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.ID, b.ID))
		})
	}
	return list, nil
}

// Update implements sandbox.Provider.
func (p *provider) Update(ctx context.Context, id string, change func(*sandbox.Spec) error) (sandbox.Sandbox, error) {
	sb, err := p.Provider.Update(ctx, id, change)
	return shown(sb), err
}

// backlog is the number of events that a slow reader can be behind before its watch ends.
const backlog = 1024

// view lists the existing sandboxes of a watch, and whether they are shown.
type view map[string]bool

// show reports whether a watcher gets an event. A sandbox is created for it when it becomes visible, and
// deleted when it is hidden.
func (v view) show(e *sandbox.Event) bool {
	id := e.Sandbox.ID
	before, known := v[id]
	now := !hidden(e.Sandbox)
	v[id] = now
	if e.Kind == sandbox.Deleted {
		delete(v, id)
		return now
	}
	switch {
	case known && !before && now && e.Kind == sandbox.Changed:
		e.Kind = sandbox.Created
	case before && !now:
		e.Kind = sandbox.Deleted
		e.Sandbox.Spec.Name = cmp.Or(trash.Name(e.Sandbox), e.Sandbox.Spec.Name)
		return true
	}
	return now
}

// Watch implements sandbox.Provider. A sandbox is created when it gets its owner.
func (p *provider) Watch(ctx context.Context) (<-chan sandbox.Event, error) {
	ctx, cancel := context.WithCancel(ctx)
	in, err := p.Provider.Watch(ctx)
	if err != nil {
		cancel()
		return nil, err
	}
	out := make(chan sandbox.Event, len(in)+backlog) // with room for all existing sandboxes
	if !p.pool.background(func(life context.Context) {
		defer cancel()
		defer close(out)
		defer context.AfterFunc(life, cancel)()
		view := view{}
		for e := range in {
			if !view.show(&e) {
				continue
			}
			e.Sandbox = shown(e.Sandbox)
			select {
			case out <- e:
			default:
				return
			}
		}
	}) {
		cancel()
		return nil, sandbox.ErrClosed
	}
	return out, nil
}

// able returns an optional ability of the wrapped provider.
func able[T any](p *provider) (T, error) {
	t, ok := p.Provider.(T)
	if !ok {
		return t, sandbox.ErrUnsupported
	}
	return t, nil
}

// PauseToDisk implements sandbox.Saver.
func (p *provider) PauseToDisk(ctx context.Context, id string) error {
	s, err := able[sandbox.Saver](p)
	if err != nil {
		return err
	}
	return s.PauseToDisk(ctx, id)
}

// Logs implements sandbox.Logger.
func (p *provider) Logs(ctx context.Context, id string, limit int64) ([]byte, error) {
	l, err := able[sandbox.Logger](p)
	if err != nil {
		return nil, err
	}
	return l.Logs(ctx, id, limit)
}

// Stats implements sandbox.Stater.
func (p *provider) Stats(ctx context.Context, id string) (sandbox.Stats, error) {
	s, err := able[sandbox.Stater](p)
	if err != nil {
		return sandbox.Stats{}, err
	}
	return s.Stats(ctx, id)
}

// Egress implements sandbox.Egresser.
func (p *provider) Egress(ctx context.Context, id string) (net.Listener, error) {
	e, err := able[sandbox.Egresser](p)
	if err != nil {
		return nil, err
	}
	return e.Egress(ctx, id)
}

// Snapshot implements sandbox.Snapshotter.
func (p *provider) Snapshot(ctx context.Context, id, name string) (sandbox.Snapshot, error) {
	s, err := able[sandbox.Snapshotter](p)
	if err != nil {
		return sandbox.Snapshot{}, err
	}
	return s.Snapshot(ctx, id, name)
}

// Snapshots implements sandbox.Snapshotter.
func (p *provider) Snapshots(ctx context.Context, owner string) ([]sandbox.Snapshot, error) {
	s, err := able[sandbox.Snapshotter](p)
	if err != nil {
		return nil, err
	}
	return s.Snapshots(ctx, owner)
}

// DeleteSnapshot implements sandbox.Snapshotter.
func (p *provider) DeleteSnapshot(ctx context.Context, owner, name string) error {
	s, err := able[sandbox.Snapshotter](p)
	if err != nil {
		return err
	}
	return s.DeleteSnapshot(ctx, owner, name)
}

// Rollback implements sandbox.Snapshotter.
func (p *provider) Rollback(ctx context.Context, id, name string) error {
	s, err := able[sandbox.Snapshotter](p)
	if err != nil {
		return err
	}
	return s.Rollback(ctx, id, name)
}

// Fork implements sandbox.Forker.
func (p *provider) Fork(ctx context.Context, id string, specs []sandbox.Spec) ([]sandbox.Sandbox, error) {
	f, err := able[sandbox.Forker](p)
	if err != nil {
		return nil, err
	}
	return f.Fork(ctx, id, specs)
}

// Diff implements sandbox.Differ.
func (p *provider) Diff(ctx context.Context, id string, limit int) (sandbox.Diff, error) {
	d, err := able[sandbox.Differ](p)
	if err != nil {
		return sandbox.Diff{}, err
	}
	return d.Diff(ctx, id, limit)
}

// Volumes implements sandbox.Volumer.
func (p *provider) Volumes(ctx context.Context, owner string) ([]sandbox.VolumeInfo, error) {
	v, err := able[sandbox.Volumer](p)
	if err != nil {
		return nil, err
	}
	return v.Volumes(ctx, owner)
}

// CreateVolume implements sandbox.Volumer.
func (p *provider) CreateVolume(ctx context.Context, owner, name string) (sandbox.VolumeInfo, error) {
	v, err := able[sandbox.Volumer](p)
	if err != nil {
		return sandbox.VolumeInfo{}, err
	}
	return v.CreateVolume(ctx, owner, name)
}

// DeleteVolume implements sandbox.Volumer.
func (p *provider) DeleteVolume(ctx context.Context, owner, name string) error {
	v, err := able[sandbox.Volumer](p)
	if err != nil {
		return err
	}
	err = v.DeleteVolume(ctx, owner, name)
	uses := func(sb sandbox.Sandbox) bool {
		return slices.Contains(sandbox.VolumeUsers([]sandbox.Sandbox{sb}, owner, name), sb.ID)
	}
	if errors.Is(err, sandbox.ErrState) && p.bin.Purge(ctx, uses) {
		return v.DeleteVolume(ctx, owner, name)
	}
	return err
}

// Export implements sandbox.Exporter.
func (p *provider) Export(ctx context.Context, id string, w io.Writer) error {
	e, err := able[sandbox.Exporter](p)
	if err != nil {
		return err
	}
	return e.Export(ctx, id, w)
}

// ImportImage implements sandbox.Importer.
func (p *provider) ImportImage(ctx context.Context, path, ref string) error {
	i, err := able[sandbox.Importer](p)
	if err != nil {
		return err
	}
	return i.ImportImage(ctx, path, ref)
}

// Images implements sandbox.Importer.
func (p *provider) Images(ctx context.Context, prefix string) ([]sandbox.ImageInfo, error) {
	i, err := able[sandbox.Importer](p)
	if err != nil {
		return nil, err
	}
	return i.Images(ctx, prefix)
}

// DeleteImage implements sandbox.Importer.
func (p *provider) DeleteImage(ctx context.Context, ref string) error {
	i, err := able[sandbox.Importer](p)
	if err != nil {
		return err
	}
	return i.DeleteImage(ctx, ref)
}

// Close closes the pool and the wrapped provider. The members keep running.
func (p *provider) Close() error {
	p.pool.Close()
	return p.Provider.Close()
}

// ImageUse implements sandbox.ImageCounter.
func (p *provider) ImageUse(ctx context.Context, owner, prefix string) (int64, error) {
	c, err := able[sandbox.ImageCounter](p)
	if err != nil {
		return 0, err
	}
	return c.ImageUse(ctx, owner, prefix)
}

// SaveLayer implements sandbox.Layerer.
func (p *provider) SaveLayer(ctx context.Context, id, name string) (sandbox.Snapshot, error) {
	l, err := able[sandbox.Layerer](p)
	if err != nil {
		return sandbox.Snapshot{}, err
	}
	return l.SaveLayer(ctx, id, name)
}

// ResolveImage implements sandbox.Imager.
func (p *provider) ResolveImage(ctx context.Context, owner, ref string, fresh bool) (sandbox.ImageConfig, error) {
	i, err := able[sandbox.Imager](p)
	if err != nil {
		return sandbox.ImageConfig{}, err
	}
	return i.ResolveImage(ctx, owner, ref, fresh)
}
