// Package task runs the background work of a hub. A Group owns all goroutines that outlive the request
// that started them, and waits for them at the end.
package task

import (
	"context"
	"sync"
)

// Group is a set of goroutines with one context.
type Group struct {
	ctx    context.Context
	cancel context.CancelFunc

	mu      sync.Mutex
	sealed  bool
	running sync.WaitGroup // grows only while not sealed
}

// New returns an empty group.
func New() *Group {
	g := &Group{}
	g.ctx, g.cancel = context.WithCancel(context.Background())
	return g
}

// Context ends with Cancel.
func (g *Group) Context() context.Context { return g.ctx }

// Go runs f with the group's context. After Seal it returns false and does not run f.
func (g *Group) Go(f func(ctx context.Context)) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.sealed {
		return false
	}
	g.running.Go(func() { f(g.ctx) })
	return true
}

// Seal prevents new work. It reports whether this was the first call.
func (g *Group) Seal() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	first := !g.sealed
	g.sealed = true
	return first
}

// Cancel seals the group and ends its context.
func (g *Group) Cancel() {
	g.Seal()
	g.cancel()
}

// Wait returns when all goroutines have ended.
func (g *Group) Wait() { g.running.Wait() }
