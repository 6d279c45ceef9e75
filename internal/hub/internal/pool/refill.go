package pool

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/cove-sandbox/cove/internal/sandbox"
)

const (
	// removeWait is the timeout for the deletion of a member.
	removeWait = time.Minute
	// firstPause and longestPause are the limits of the pause between retries.
	firstPause   = time.Second
	longestPause = 5 * time.Minute
)

// loop maintains the members until the pool is closed.
func (p *Pool) loop(ctx context.Context) {
	tick := time.NewTicker(p.cfg.Every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-p.changed:
		}
		p.inspect(ctx)
	}
}

// inspect compares the members with the wanted pools, deletes surplus members and creates missing ones.
func (p *Pool) inspect(ctx context.Context) {
	p.mu.Lock()
	seen := p.moves
	p.mu.Unlock()
	list, err := p.cfg.Provider.List(ctx, sandbox.Filter{Owner: Owner})
	if err != nil {
		if ctx.Err() == nil && !errors.Is(err, sandbox.ErrClosed) {
			p.cfg.Log.Error("cannot list warm sandboxes", "error", err)
		}
		return
	}
	wants := p.cfg.Size()
	gone, ok := p.classify(list, wants, seen)
	if !ok {
		p.Notify()
		return
	}
	for _, d := range gone {
		p.background(func(context.Context) { p.remove(d.sb, d.why) })
	}
	p.refill(wants, seen)
}

// doomed is a member to delete, which is already held.
type doomed struct {
	sb  sandbox.Sandbox
	why string
}

// classify marks the wanted members as ready, and returns the others. It ignores a list that is older than
// a claim or create, because claimed sandboxes would look free.
func (p *Pool) classify(list []sandbox.Sandbox, wants map[string]Want, seen int) (out []doomed, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.moves != seen {
		return nil, false
	}
	ready := map[string][]sandbox.Sandbox{}
	for _, sb := range list {
		env := sb.Spec.Annotations[noteOf]
		if p.held[sb.ID] || sb.State == sandbox.Creating || sb.State == sandbox.Deleting {
			continue
		}
		w, wanted := wants[env]
		why := ""
		switch {
		case sb.State != sandbox.Running:
			why = "it is " + string(sb.State)
		case !wanted || w.print() != sb.Spec.Annotations[notePrint]:
			why = "its environment has changed"
		case len(ready[env]) >= w.Size:
			why = "the pool is too large"
		}
		if why == "" {
			ready[env] = append(ready[env], sb)
			continue
		}
		p.held[sb.ID] = true
		out = append(out, doomed{sb, why})
	}
	// One at a time, and only from a full pool, so that aging never empties it.
	for env, list := range ready {
		if len(list) == wants[env].Size && time.Since(list[0].Created) > p.cfg.Age {
			p.held[list[0].ID] = true
			out = append(out, doomed{list[0], "it is old"})
			ready[env] = list[1:]
		}
	}
	p.ready = ready
	return out, true
}

// refill starts as many creates as the limits allow. If members changed after the list was made, it
// triggers another inspection instead.
func (p *Pool) refill(wants map[string]Want, seen int) {
	if p.cfg.Busy() {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.claims > 0 {
		return // the last one notifies
	}
	if p.moves != seen {
		p.Notify()
		return
	}
	total, under := 0, 0
	for _, list := range p.ready {
		total += len(list)
	}
	for _, n := range p.pending {
		under += n
	}
	total += under
	for _, env := range slices.Sorted(maps.Keys(wants)) {
		w := wants[env]
		if time.Now().Before(p.failing[env].until) {
			continue
		}
		for len(p.ready[env])+p.pending[env] < w.Size && under < p.cfg.Parallel && total < p.cfg.Max && !p.closed {
			p.pending[env]++
			under++
			total++
			p.work.Go(func() { p.create(p.life, env, w) })
		}
	}
}

// create creates one member. The next inspection finds it.
func (p *Pool) create(ctx context.Context, env string, w Want) {
	_, err := p.cfg.Provider.Create(ctx, w.member(env))
	p.mu.Lock()
	p.moves++
	if p.pending[env]--; p.pending[env] == 0 {
		delete(p.pending, env)
	}
	if err == nil {
		delete(p.failing, env)
	}
	p.mu.Unlock()
	if err != nil && ctx.Err() == nil {
		p.backOff(env, err)
	}
	p.Notify()
}

// backOff pauses creates of an environment, longer after each failure.
func (p *Pool) backOff(env string, err error) {
	p.mu.Lock()
	f := p.failing[env]
	pause := min(firstPause<<min(f.times, 16), longestPause)
	p.failing[env] = failure{f.times + 1, time.Now().Add(pause)}
	p.mu.Unlock()
	p.cfg.Log.Warn("cannot create warm sandbox", "environment", env, "error", err, "pause", pause)
}

// remove deletes a sandbox that is held or unknown.
func (p *Pool) remove(sb sandbox.Sandbox, why string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(p.life), removeWait)
	defer cancel()
	err := p.cfg.Provider.Delete(ctx, sb.ID)
	if err != nil && !errors.Is(err, sandbox.ErrNotFound) {
		p.cfg.Log.Error("cannot delete warm sandbox", "sandbox", sb.ID, "error", err)
	} else {
		p.cfg.Log.Info("deleted warm sandbox", "sandbox", sb.ID, "environment", sb.Spec.Environment, "why", why)
	}
	p.release(sb.ID)
	p.Notify()
}

func (p *Pool) release(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.moves++
	delete(p.held, id)
}
