package hub

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cove-sandbox/cove/internal/sandbox"
)

// pipeProvider is a provider that connects to its sandboxes through pipes instead of sockets,
// so that tests can use simulated time.
type pipeProvider struct {
	table *sandbox.Table[*pipeBox]
	run   func(sandbox.Sandbox) http.Handler

	starts atomic.Int64
	broken atomic.Bool // start fails
}

type pipeBox struct {
	server *http.Server
	lis    *pipes
}

func newPipeProvider(run func(sandbox.Sandbox) http.Handler) *pipeProvider {
	return &pipeProvider{table: sandbox.NewTable[*pipeBox](), run: run}
}

// pipes is a listener whose connections are pipes.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func newPipes() *pipes { return &pipes{conns: make(chan net.Conn), done: make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) dial(ctx context.Context) (net.Conn, error) {
	a, b := net.Pipe()
	select {
	case p.conns <- a:
		return b, nil
	case <-p.done:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (p *pipes) Close() error   { p.once.Do(func() { close(p.done) }); return nil }
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "unix"} }

func (b *pipeBox) start(h http.Handler) {
	b.lis, b.server = newPipes(), &http.Server{Handler: h}
	go b.server.Serve(b.lis)
}

func (b *pipeBox) stop() {
	if b.server != nil {
		b.server.Close()
		b.server = nil
	}
}

func (p *pipeProvider) Abilities() sandbox.Abilities {
	return sandbox.Abilities{Provider: "pipe", Pause: true, Stop: true, Stats: true, Limits: []string{"disk"}}
}

func (p *pipeProvider) Create(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	if err := spec.Validate(); err != nil {
		return sandbox.Sandbox{}, err
	}
	now := time.Now()
	sb := sandbox.Sandbox{ID: sandbox.NewID(), Spec: spec, State: sandbox.Creating, Created: now, Changed: now}
	if sb.Spec.Name == "" {
		sb.Spec.Name = sb.ID
	}
	_, row, err := p.table.Add(ctx, sb)
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	defer row.Release()
	row.Data = &pipeBox{}
	row.Data.start(p.run(sb))
	return row.Change(func(sb *sandbox.Sandbox) { sb.State = sandbox.Running }), nil
}

func (p *pipeProvider) Get(_ context.Context, id string) (sandbox.Sandbox, error) {
	return p.table.Get(id)
}

func (p *pipeProvider) List(_ context.Context, f sandbox.Filter) ([]sandbox.Sandbox, error) {
	return p.table.List(f)
}

func (p *pipeProvider) Watch(ctx context.Context) (<-chan sandbox.Event, error) {
	return p.table.Watch(ctx)
}

func (p *pipeProvider) Update(ctx context.Context, id string, change func(*sandbox.Spec) error) (sandbox.Sandbox, error) {
	row, err := p.table.AcquireIdle(ctx, id)
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	defer row.Release()
	return row.Update(change, nil)
}

func (p *pipeProvider) Delete(ctx context.Context, id string) error {
	row, err := p.table.AcquireForDelete(ctx, id)
	if err != nil || row == nil {
		return err
	}
	defer row.Release()
	row.Data.stop()
	row.Remove()
	return nil
}

func (p *pipeProvider) turn(ctx context.Context, id string, to sandbox.State, do func(*pipeBox, sandbox.Sandbox),
	from ...sandbox.State) error {
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
		return fmt.Errorf("%w: %s", sandbox.ErrState, sb.State)
	}
	if do != nil {
		do(row.Data, sb)
	}
	row.Change(func(sb *sandbox.Sandbox) { sb.State = to })
	return nil
}

func (p *pipeProvider) Pause(ctx context.Context, id string) error {
	return p.turn(ctx, id, sandbox.Paused, nil, sandbox.Running)
}

func (p *pipeProvider) Resume(ctx context.Context, id string) error {
	return p.turn(ctx, id, sandbox.Running, nil, sandbox.Paused)
}

func (p *pipeProvider) Stop(ctx context.Context, id string) error {
	return p.turn(ctx, id, sandbox.Stopped, func(b *pipeBox, _ sandbox.Sandbox) { b.stop() }, sandbox.Running, sandbox.Paused)
}

func (p *pipeProvider) Start(ctx context.Context, id string) error {
	p.starts.Add(1)
	if p.broken.Load() {
		return sandbox.ErrNotReady
	}
	return p.turn(ctx, id, sandbox.Running, func(b *pipeBox, sb sandbox.Sandbox) { b.start(p.run(sb)) }, sandbox.Stopped)
}

func (p *pipeProvider) Stats(_ context.Context, id string) (sandbox.Stats, error) {
	_, err := p.table.Get(id)
	return sandbox.Stats{Memory: 42, Time: time.Now()}, err
}

func (p *pipeProvider) Endpoint(ctx context.Context, id string, _ int) (sandbox.Endpoint, error) {
	row, err := p.table.AcquireIdle(ctx, id)
	if err != nil {
		return sandbox.Endpoint{}, err
	}
	defer row.Release()
	if row.Data.server == nil {
		return sandbox.Endpoint{}, sandbox.ErrState
	}
	return sandbox.Endpoint{Dial: row.Data.lis.dial}, nil
}

func (p *pipeProvider) Close() error {
	p.table.Close(sandbox.ErrClosed)
	p.table.Each(func(b *pipeBox) { b.stop() })
	return nil
}
