package image

import (
	"context"
	"sync"

	"github.com/cove-sandbox/cove/internal/sandbox"
)

// sharedCalls lets concurrent callers with the same key share one call. The call continues while at least one caller waits.
type sharedCalls[V any] struct {
	ctx    context.Context
	wg     *sync.WaitGroup
	mu     sync.Mutex
	m      map[string]*sharedCall[V]
	closed bool
}

type sharedCall[V any] struct {
	cancel  context.CancelFunc
	done    chan struct{}
	value   V // after done
	err     error
	waiting int // guarded by sharedCalls.mu

	mu    sync.Mutex
	subs  map[*Progress]struct{}
	state [2]int64
}

func newSharedCalls[V any](ctx context.Context, wg *sync.WaitGroup) *sharedCalls[V] {
	return &sharedCalls[V]{ctx: ctx, wg: wg, m: map[string]*sharedCall[V]{}}
}

// close makes further calls fail.
func (g *sharedCalls[V]) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
}

// do returns the result of fn, called for this caller or another with the same key.
func (g *sharedCalls[V]) do(ctx context.Context, key string, p Progress, fn func(context.Context, Progress) (V, error)) (v V, err error) {
	g.mu.Lock()
	if g.closed {
		g.mu.Unlock()
		return v, sandbox.ErrClosed
	}
	f := g.m[key]
	if f == nil {
		f = g.begin(key, fn)
	}
	f.waiting++
	g.mu.Unlock()
	defer f.subscribe(p)()
	select {
	case <-f.done:
		return f.value, f.err
	case <-ctx.Done():
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	f.waiting--
	if f.waiting == 0 {
		// Later callers must not get the error of this cancellation.
		f.cancel()
		if g.m[key] == f {
			delete(g.m, key)
		}
	}
	return v, ctx.Err()
}

func (g *sharedCalls[V]) begin(key string, fn func(context.Context, Progress) (V, error)) *sharedCall[V] {
	ctx, cancel := context.WithCancel(g.ctx)
	f := &sharedCall[V]{cancel: cancel, done: make(chan struct{}), subs: map[*Progress]struct{}{}}
	g.m[key] = f
	g.wg.Go(func() {
		defer cancel()
		f.value, f.err = fn(ctx, f.report)
		g.mu.Lock()
		if g.m[key] == f {
			delete(g.m, key)
		}
		g.mu.Unlock()
		close(f.done)
	})
	return f
}

func (f *sharedCall[V]) subscribe(p Progress) (leave func()) {
	if p == nil {
		return func() {}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.subs[&p] = struct{}{}
	if f.state[1] > 0 {
		p(f.state[0], f.state[1])
	}
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.subs, &p)
	}
}

func (f *sharedCall[V]) report(done, total int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.state = [2]int64{done, total}
	for p := range f.subs {
		(*p)(done, total)
	}
}
