package jupyter

import (
	"context"
	"log/slog"
	"runtime"
	"slices"
	"sync"

	"github.com/cove-sandbox/cove/internal/kernel"
)

// pool starts kernels of the default kind and keeps some that nobody has used. Who
// takes one that is not there gets the next that has started, which may be on its way.
type pool struct {
	warm  int
	log   *slog.Logger
	start func(kernel.Spec) (*kernel.Kernel, error)

	tasks sync.WaitGroup

	mu       sync.Mutex
	closed   bool
	spec     kernel.Spec
	idle     []*kernel.Kernel
	starting int
	waiting  []chan started
}

// started is a kernel or why there is none.
type started struct {
	k   *kernel.Kernel
	err error
}

// starts is how many kernels are started at the same time: more only slow each other down.
func starts() int { return max(2, runtime.NumCPU()) }

// take returns a kernel that nobody has used.
func (p *pool) take(ctx context.Context, spec kernel.Spec) (*kernel.Kernel, error) {
	p.mu.Lock()
	p.spec = spec
	for len(p.idle) > 0 {
		k := p.idle[0]
		p.idle = p.idle[1:]
		if k.Err() == nil {
			p.fill()
			p.mu.Unlock()
			return k, nil
		}
		p.discard(k)
	}
	mine := make(chan started, 1)
	p.waiting = append(p.waiting, mine)
	p.fill()
	p.mu.Unlock()
	select {
	case got := <-mine:
		return got.k, got.err
	case <-ctx.Done():
		p.mu.Lock()
		defer p.mu.Unlock()
		if i := slices.Index(p.waiting, mine); i >= 0 {
			p.waiting = slices.Delete(p.waiting, i, i+1)
		} else if got := <-mine; got.k != nil { // it came just now
			p.keep(got.k)
		}
		return nil, context.Cause(ctx)
	}
}

// fill starts kernels for those who wait. Only when nobody does are others started:
// they would delay the ones that are waited for. The lock is held.
func (p *pool) fill() {
	want := len(p.waiting)
	if want == 0 {
		want = p.warm - len(p.idle)
	}
	for !p.closed && p.starting < min(want, starts()) {
		p.starting++
		spec := p.spec
		p.tasks.Go(func() { p.deliver(p.start(spec)) })
	}
	for p.closed && len(p.waiting) > 0 {
		p.waiting[0] <- started{err: kernel.ErrClosed}
		p.waiting = p.waiting[1:]
	}
}

// deliver hands a kernel to who waits longest, or keeps it.
func (p *pool) deliver(k *kernel.Kernel, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.starting--
	switch {
	case len(p.waiting) > 0:
		p.waiting[0] <- started{k, err}
		p.waiting = p.waiting[1:]
		p.fill()
	case err != nil:
		// The next call tries again and tells its caller.
		p.log.Warn("no kernel could be started in advance", "error", err)
	default:
		p.keep(k)
		p.fill()
	}
}

// keep puts a kernel by, unless there are enough. The lock is held.
func (p *pool) keep(k *kernel.Kernel) {
	if p.closed { // nobody waits for tasks any more
		k.Close()
		return
	}
	if len(p.idle) >= p.warm {
		p.discard(k)
		return
	}
	p.idle = append(p.idle, k)
}

// discard ends a kernel. The lock is held.
func (p *pool) discard(k *kernel.Kernel) { p.tasks.Go(func() { k.Close() }) }

// drop ends the kernels that are kept; the next use starts others.
func (p *pool) drop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, k := range p.idle {
		p.discard(k)
	}
	p.idle = nil
}

// size is how many kernels are kept.
func (p *pool) size() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.idle)
}

// close ends everything. Starts that are on their way must have been canceled.
func (p *pool) close() {
	p.mu.Lock()
	p.closed = true
	p.fill()
	p.mu.Unlock()
	p.drop()
	p.tasks.Wait()
}
