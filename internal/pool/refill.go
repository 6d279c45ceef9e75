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
	// removeWait bounds the end of a member, which is carried through anyway.
	removeWait = time.Minute
	// firstPause and longestPause are between tries of what fails.
	firstPause   = time.Second
	longestPause = 5 * time.Minute
)

// loop looks after the members until the pool is closed.
func (p *Pool) loop(ctx context.Context) {
	tick := time.NewTicker(p.cfg.Every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-p.kick:
		}
		p.look(ctx)
	}
}

// look compares what is there with what is wanted, ends what is too much and
// begins what is missing.
func (p *Pool) look(ctx context.Context) {
	p.mu.Lock()
	seen := p.moves
	p.mu.Unlock()
	list, err := p.cfg.Provider.List(ctx, sandbox.Filter{Owner: Owner})
	if err != nil {
		if ctx.Err() == nil && !errors.Is(err, sandbox.ErrClosed) {
			p.cfg.Log.Error("cannot list the pool", "error", err)
		}
		return
	}
	wants := p.cfg.Size()
	gone, ok := p.sort(list, wants, seen)
	if !ok {
		p.Kick()
		return
	}
	for _, d := range gone {
		p.background(func(context.Context) { p.remove(d.sb, d.why) })
	}
	p.refill(wants, seen)
}

// doomed is a member to be deleted, which is held already.
type doomed struct {
	sb  sandbox.Sandbox
	why string
}

// sort keeps the members that are wanted as ready, and returns the others. A list
// that was overtaken by a claim or a create counts for nothing: it may show as
// free what has an owner by now.
func (p *Pool) sort(list []sandbox.Sandbox, wants map[string]Want, seen int) (out []doomed, ok bool) {
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
		_, half := sb.Spec.Annotations[noteBinding]
		why := ""
		switch {
		case half:
			why = "its claim was interrupted"
		case sb.State != sandbox.Running:
			why = "it is " + string(sb.State)
		case !wanted || w.print() != sb.Spec.Annotations[notePrint]:
			why = "its environment has changed"
		case len(ready[env]) >= w.Size:
			why = "there are more than wanted"
		}
		if why == "" {
			ready[env] = append(ready[env], sb)
			continue
		}
		p.held[sb.ID] = true
		out = append(out, doomed{sb, why})
	}
	// One at a time, and only from a full pool, so that it never runs dry of age.
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

// refill begins as many creates as the bounds allow. What has moved since the list
// was made would be counted wrongly, so another look is taken.
func (p *Pool) refill(wants map[string]Want, seen int) {
	if p.cfg.Busy() {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.moves != seen {
		p.Kick()
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

// create makes one member. The next look finds it: who else entered it could enter
// it twice.
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
		p.failed(env, err)
	}
	p.Kick()
}

// failed lets an environment rest, longer each time.
func (p *Pool) failed(env string, err error) {
	p.mu.Lock()
	f := p.failing[env]
	pause := min(firstPause<<min(f.times, 16), longestPause)
	p.failing[env] = failure{f.times + 1, time.Now().Add(pause)}
	p.mu.Unlock()
	p.cfg.Log.Warn("cannot keep a sandbox ready", "environment", env, "error", err, "pause", pause)
}

// remove deletes a sandbox that is held, or that nobody knows.
func (p *Pool) remove(sb sandbox.Sandbox, why string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(p.life), removeWait)
	defer cancel()
	err := p.cfg.Provider.Delete(ctx, sb.ID)
	if err != nil && !errors.Is(err, sandbox.ErrNotFound) {
		p.cfg.Log.Error("cannot delete a sandbox of the pool", "sandbox", sb.ID, "error", err)
	} else {
		p.cfg.Log.Info("deleted a sandbox of the pool", "sandbox", sb.ID, "environment", sb.Spec.Environment, "why", why)
	}
	p.release(sb.ID)
	p.Kick()
}

func (p *Pool) release(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.moves++
	delete(p.held, id)
}
