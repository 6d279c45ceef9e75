// Package mem is a provider for tests whose sandboxes are HTTP servers inside this process. It passes the same suite as
// the real providers. It owns its servers. It has no isolation and no images, and its volumes have no content.
package mem

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/sandbox"
)

// Guest is the program of a sandbox.
type Guest interface {
	http.Handler
	// Pause and Resume simulate the freezer; the provider delays requests.
	Pause()
	Resume()
	Close() error
}

// Config configures a provider.
type Config struct {
	// Store is the simulated machine; it outlives the provider.
	Store *Store
	// Run starts the program of a sandbox. The program calls exit when it ends.
	Run func(sb sandbox.Sandbox, disk *Disk, exit func(code int)) (Guest, error)
}

// Store is a simulated machine: its sandboxes and the provider that uses it. The zero value is ready to use.
type Store struct {
	mu     sync.Mutex
	holder *Provider
	boxes  map[string]*box
	snaps  map[named]snapshot
	vols   map[named]sandbox.VolumeInfo
}

// box is a sandbox on the machine.
type box struct {
	sb   sandbox.Sandbox
	disk Disk
	was  map[string][]byte // initial content of the disk
	from string            // the snapshot from which it was created
	kept map[string][]byte // content of the disk at its last layer
	run  *run              // nil if it does not run
}

// Provider implements sandbox.Provider.
type Provider struct {
	cfg   Config
	table *sandbox.Table[*box]
}

var (
	_ sandbox.Provider    = (*Provider)(nil)
	_ sandbox.Snapshotter = (*Provider)(nil)
	_ sandbox.Forker      = (*Provider)(nil)
	_ sandbox.Differ      = (*Provider)(nil)
	_ sandbox.Volumer     = (*Provider)(nil)
	_ sandbox.Layerer     = (*Provider)(nil)
)

// Open locks the store and adopts the sandboxes in it.
func Open(cfg Config) (*Provider, error) {
	if cfg.Store == nil || cfg.Run == nil {
		return nil, errors.New("open mem provider: Store and Run are required")
	}
	p := &Provider{cfg: cfg, table: sandbox.NewTable[*box]()}
	s := cfg.Store
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.holder != nil {
		return nil, sandbox.ErrInUse
	}
	s.holder = p
	if s.boxes == nil {
		s.boxes, s.snaps, s.vols = map[string]*box{}, map[named]snapshot{}, map[named]sandbox.VolumeInfo{}
	}
	for id, b := range s.boxes {
		if b.sb.State == sandbox.Creating || b.sb.State == sandbox.Deleting {
			b.kill()
			delete(s.boxes, id)
			continue
		}
		if _, err := p.table.Adopt(b.sb, b); err != nil {
			return nil, err
		}
		if b.run != nil {
			p.watchEnd(id, b.run)
		}
	}
	return p, nil
}

// Abandon releases the store without any cleanup, like kill -9.
func (p *Provider) Abandon() {
	p.table.Close(errAbandoned)
	p.release()
}

var errAbandoned = errors.New("provider was abandoned")

// Close implements sandbox.Provider.
func (p *Provider) Close() error {
	p.table.Close(sandbox.ErrClosed)
	p.release()
	return nil
}

func (p *Provider) release() {
	p.cfg.Store.mu.Lock()
	defer p.cfg.Store.mu.Unlock()
	if p.cfg.Store.holder == p {
		p.cfg.Store.holder = nil
	}
}

// Left lists the sandboxes on the machine.
func (s *Store) Left() (left []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, b := range s.boxes {
		left = append(left, fmt.Sprintf("%s (%s)", id, b.sb.State))
	}
	return left
}

// Abilities implements sandbox.Provider.
func (p *Provider) Abilities() sandbox.Abilities {
	return sandbox.Abilities{Provider: "mem", Pause: true, Stop: true, Snapshot: true, Fork: true, Diff: true,
		Volume: true, Build: true, Isolation: []string{"none"}, Limits: []string{"cpu", "disk", "memory"}, // it runs no programs
		Missing: []string{"isolation: none; use it only in tests"}}
}

// Create implements sandbox.Provider.
func (p *Provider) Create(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	if err := p.check(spec); err != nil {
		return sandbox.Sandbox{}, err
	}
	ctx, done, err := p.table.Begin(ctx)
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	defer done()
	var from snapshot
	if spec.Snapshot != "" {
		if from, err = p.snapshot(spec.Owner, spec.Snapshot); err != nil {
			return sandbox.Sandbox{}, err
		}
	}
	return p.create(ctx, spec, from)
}

// create creates a sandbox whose disk starts from a snapshot.
func (p *Provider) create(ctx context.Context, spec sandbox.Spec, from snapshot) (sandbox.Sandbox, error) {
	now := time.Now()
	sb := sandbox.Sandbox{ID: sandbox.NewID(), Spec: spec, State: sandbox.Creating, Created: now, Changed: now}
	if sb.Spec.Name == "" {
		sb.Spec.Name = sb.ID
	}
	ctx, row, err := p.table.Add(ctx, sb)
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	defer row.Release()
	row.Data = &box{sb: row.Sandbox(), from: from.info.Name, was: from.files, disk: Disk{files: maps.Clone(from.files)}}
	p.keep(row, row.Data.sb)
	for _, v := range spec.Volumes {
		p.useVolume(spec.Owner, v.Name)
	}
	if err := p.start(ctx, row); err != nil {
		if !errors.Is(err, errAbandoned) {
			p.remove(row)
		}
		return sandbox.Sandbox{}, err
	}
	return row.Sandbox(), nil
}

func (p *Provider) check(spec sandbox.Spec) error {
	switch err := spec.Validate(); {
	case err != nil:
		return err
	case spec.Image != "" || spec.Isolation != "" && spec.Isolation != "none":
		return fmt.Errorf("%w: mem supports neither images nor isolation", sandbox.ErrUnsupported)
	}
	return nil
}

// start runs the guest and waits until it is ready. If that fails, it ends the guest.
func (p *Provider) start(ctx context.Context, row *sandbox.Row[*box]) error {
	began, b := time.Now(), row.Data
	l, err := p.startGuest(row.Sandbox(), &b.disk)
	if err != nil {
		return err
	}
	b.run = l
	if err := l.waitReady(ctx, row.Sandbox().Spec.Server); err != nil {
		if !errors.Is(err, errAbandoned) {
			b.kill()
		}
		return err
	}
	p.watchEnd(row.Sandbox().ID, l)
	p.change(row, func(sb *sandbox.Sandbox) {
		sb.State, sb.Message, sb.Stages = sandbox.Running, "", []sandbox.Stage{{Name: "ready", Took: time.Since(began)}}
	})
	return nil
}

// watchEnd waits in the background for the guest to end.
func (p *Provider) watchEnd(id string, l *run) {
	p.table.Go(func(ctx context.Context) {
		select {
		case <-ctx.Done():
			return
		case <-l.killed:
			return
		case <-l.ended:
		}
		row, err := p.table.Acquire(ctx, id)
		if err != nil {
			return
		}
		defer row.Release()
		if row.Data.run != l {
			return // it was stopped or deleted
		}
		row.Data.kill()
		p.change(row, func(sb *sandbox.Sandbox) {
			sb.State, sb.Message = sandbox.Failed, fmt.Sprintf("exited with status %d", l.code)
		})
	})
}

// change edits the sandbox, in the table and in the store.
func (p *Provider) change(row *sandbox.Row[*box], edit func(*sandbox.Sandbox)) {
	p.keep(row, row.Change(edit))
}

func (p *Provider) keep(row *sandbox.Row[*box], sb sandbox.Sandbox) {
	p.cfg.Store.mu.Lock()
	defer p.cfg.Store.mu.Unlock()
	row.Data.sb = sb
	p.cfg.Store.boxes[sb.ID] = row.Data
}

func (p *Provider) remove(row *sandbox.Row[*box]) {
	row.Change(func(sb *sandbox.Sandbox) { sb.State = sandbox.Deleting }) // callers whose connections end look for the reason
	row.Data.kill()
	p.cfg.Store.mu.Lock()
	delete(p.cfg.Store.boxes, row.Data.sb.ID)
	p.cfg.Store.mu.Unlock()
	row.Remove()
}

// Get implements sandbox.Provider.
func (p *Provider) Get(_ context.Context, id string) (sandbox.Sandbox, error) { return p.table.Get(id) }

// List implements sandbox.Provider.
func (p *Provider) List(_ context.Context, f sandbox.Filter) ([]sandbox.Sandbox, error) {
	return p.table.List(f)
}

// Watch implements sandbox.Provider.
func (p *Provider) Watch(ctx context.Context) (<-chan sandbox.Event, error) {
	return p.table.Watch(ctx)
}

// Update implements sandbox.Provider.
func (p *Provider) Update(ctx context.Context, id string, change func(*sandbox.Spec) error) (sandbox.Sandbox, error) {
	row, err := p.table.AcquireIdle(ctx, id)
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	defer row.Release()
	sb, err := row.Update(change, nil)
	if err == nil {
		p.keep(row, sb)
	}
	return sb, err
}

// Delete implements sandbox.Provider.
func (p *Provider) Delete(ctx context.Context, id string) error {
	row, err := p.table.AcquireForDelete(context.WithoutCancel(ctx), id)
	if err != nil || row == nil {
		return err
	}
	defer row.Release()
	p.remove(row)
	return nil
}

// Pause implements sandbox.Provider.
func (p *Provider) Pause(ctx context.Context, id string) error {
	return p.changeState(ctx, id, sandbox.Paused, []sandbox.State{sandbox.Running}, func(b *box) { b.run.pause() })
}

// Resume implements sandbox.Provider.
func (p *Provider) Resume(ctx context.Context, id string) error {
	return p.changeState(ctx, id, sandbox.Running, []sandbox.State{sandbox.Paused}, func(b *box) { b.run.resume() })
}

// Stop implements sandbox.Provider.
func (p *Provider) Stop(ctx context.Context, id string) error {
	return p.changeState(ctx, id, sandbox.Stopped, []sandbox.State{sandbox.Running, sandbox.Paused, sandbox.Failed}, (*box).kill)
}

// changeState brings a sandbox from one of the states from to another.
func (p *Provider) changeState(ctx context.Context, id string, to sandbox.State, from []sandbox.State, do func(*box)) error {
	row, err := p.table.AcquireIdle(ctx, id)
	if err != nil {
		return err
	}
	defer row.Release()
	sb := row.Sandbox()
	if sb.State == to {
		return nil
	}
	if !(sandbox.Filter{States: from}).Match(sb) {
		return fmt.Errorf("%w: sandbox %q is %s", sandbox.ErrState, sb.Spec.Name, sb.State)
	}
	do(row.Data)
	p.change(row, func(sb *sandbox.Sandbox) { sb.State, sb.Message = to, "" })
	return nil
}

// Start implements sandbox.Provider.
func (p *Provider) Start(ctx context.Context, id string) error {
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
	switch sb := row.Sandbox(); sb.State {
	case sandbox.Running:
		return nil
	case sandbox.Stopped, sandbox.Failed:
		return p.start(ctx, row)
	default:
		return fmt.Errorf("%w: sandbox %q is %s", sandbox.ErrState, sb.Spec.Name, sb.State)
	}
}

// Endpoint implements sandbox.Provider.
func (p *Provider) Endpoint(ctx context.Context, id string, port int) (sandbox.Endpoint, error) {
	row, err := p.table.AcquireIdle(ctx, id)
	if err != nil {
		return sandbox.Endpoint{}, err
	}
	defer row.Release()
	if port != 0 {
		if err := sandbox.CheckPort(port); err != nil {
			return sandbox.Endpoint{}, fmt.Errorf("%w: %w", sandbox.ErrInvalid, err)
		}
		return sandbox.Endpoint{}, fmt.Errorf("%w: mem serves only one port", sandbox.ErrUnsupported)
	}
	if row.Data.run == nil {
		sb := row.Sandbox()
		return sandbox.Endpoint{}, fmt.Errorf("%w: sandbox %q is %s; start it first", sandbox.ErrState, sb.Spec.Name, sb.State)
	}
	addr := row.Data.run.addr
	return sandbox.Endpoint{Address: addr, Dial: func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "tcp", addr)
	}}, nil
}

// waitReady probes the guest until it is ready.
func (l *run) waitReady(ctx context.Context, srv sandbox.Server) error {
	path, timeout := srv.ReadyPath, srv.ReadyTimeout
	if path == "" {
		path = "/readyz"
	}
	if timeout == 0 {
		timeout = 30 * time.Second
	}
	deadline := time.NewTimer(timeout)
	defer deadline.Stop()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		rec := httptest.NewRecorder()
		l.guest.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, path, nil))
		select {
		case <-l.ended:
			return fmt.Errorf("%w: it exited with status %d", sandbox.ErrNotReady, l.code)
		default:
		}
		if rec.Code == http.StatusOK {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-deadline.C:
			return fmt.Errorf("%w in %v: %s answered %d", sandbox.ErrNotReady, timeout, path, rec.Code)
		case <-tick.C:
		}
	}
}
