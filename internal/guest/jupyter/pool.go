package jupyter

import (
	"context"
	"log/slog"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/guest/internal/kernel"
)

// pool starts kernels of the default kind in advance. If none is ready, a caller gets the
// next one that starts.
type pool struct {
	warm    int
	keepFor time.Duration // how long kernels are kept after the last call; 0: no limit
	log     *slog.Logger
	start   func(kernel.Spec) (*kernel.Kernel, error)

	tasks sync.WaitGroup

	mu       sync.Mutex
	closed   bool
	spec     kernel.Spec
	idle     []*kernel.Kernel
	starting int
	waiting  []chan started
	timer    *time.Timer // ends the idle kernels
}

// started is a kernel, or the error of its start.
type started struct {
	k   *kernel.Kernel
	err error
}

// maxStarts is how many kernels start concurrently; more would slow each other down.
func maxStarts() int { return max(2, runtime.NumCPU()) }

// take returns an unused kernel.
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
		} else if got := <-mine; got.k != nil { // already delivered
			p.keep(got.k)
		}
		return nil, context.Cause(ctx)
	}
}

// fill starts kernels for waiting callers. It starts kernels in advance only if no caller
// waits, because they would delay the others. The lock is held.
func (p *pool) fill() {
	want := len(p.waiting)
	if want == 0 {
		want = p.warm - len(p.idle)
	}
	for !p.closed && p.starting < min(want, maxStarts()) {
		p.starting++
		spec := p.spec
		p.tasks.Go(func() { p.deliver(p.start(spec)) })
	}
	for p.closed && len(p.waiting) > 0 {
		p.waiting[0] <- started{err: kernel.ErrClosed}
		p.waiting = p.waiting[1:]
	}
}

// deliver passes a kernel to the caller that has waited longest, or keeps it.
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
		// The next call tries again and reports the error.
		p.log.Warn("cannot start a kernel in advance", "error", err)
	default:
		p.keep(k)
		p.fill()
	}
}

// keep adds a kernel to the pool unless it is full. The lock is held.
func (p *pool) keep(k *kernel.Kernel) {
	if p.closed { // close may not wait for new tasks
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

// touch records a call, which postpones the end of the idle kernels.
func (p *pool) touch() {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closed || p.warm == 0 || p.keepFor <= 0:
	case p.timer == nil:
		p.timer = time.AfterFunc(p.keepFor, p.drop)
	default:
		p.timer.Reset(p.keepFor)
	}
}

// drop ends the idle kernels. The next use starts others.
func (p *pool) drop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, k := range p.idle {
		p.discard(k)
	}
	p.idle = nil
}

// size returns the number of idle kernels.
func (p *pool) size() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.idle)
}

// close ends all kernels. The caller must have canceled pending starts.
func (p *pool) close() {
	p.mu.Lock()
	p.closed = true
	if p.timer != nil {
		p.timer.Stop()
	}
	p.fill()
	p.mu.Unlock()
	p.drop()
	p.tasks.Wait()
}
