package local

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/cove-sandbox/cove/internal/isolate"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// A layer is kept while any disk stands on it: a sandbox's, a snapshot's, or one
// that a call is about to make. Which those are is never written down; it follows
// from the records. So a hub that dies at any moment leaves, at worst, layers that
// nothing stands on, and the next one removes them.

// stack is what a disk starts from: layers, and what is below them.
type stack struct {
	Layers []string `json:"layers"` // oldest first
	Base   string   `json:"base,omitempty"`
	Ref    string   `json:"ref,omitempty"` // the image's name
	Image  *Image   `json:"image,omitempty"`

	name string // the snapshot's
}

// maxLayers bounds the layers of a disk; more would make it slow, and their
// mounts must fit into one message to init.
func (p *Provider) maxLayers(b *box) int {
	_, names := p.trees(b)
	return min(64, 200/len(names))
}

// hold keeps layers, each until it is dropped as often.
func (p *Provider) hold(layers ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range layers {
		p.refs[l]++
	}
}

// drop lets go of layers and removes those that nothing stands on any more.
func (p *Provider) drop(layers ...string) error {
	var unused []string
	p.mu.Lock()
	for _, l := range layers {
		if p.refs[l]--; p.refs[l] <= 0 {
			delete(p.refs, l)
			unused = append(unused, l)
		}
	}
	p.mu.Unlock()
	var errs []error
	for _, l := range unused {
		errs = append(errs, p.store.remove(l))
	}
	return errors.Join(errs...)
}

// giveBack ends a loan. That a layer cannot be removed is no failure of the call
// that had it: the next hub tries again.
func (p *Provider) giveBack(s stack) {
	if err := p.drop(s.Layers...); err != nil {
		p.cfg.Log.Error("cannot remove a layer", "err", err)
	}
}

// dropLayers removes what no record stands on.
func (p *Provider) dropLayers() error {
	there, err := p.store.layers()
	if err != nil {
		return err
	}
	for _, l := range there {
		if p.refs[l] == 0 {
			if err := p.store.remove(l); err != nil {
				return err
			}
		}
	}
	return nil
}

// take copies the sandbox's disk as it is now. The row is acquired. What it
// returns is held for the caller.
func (p *Provider) take(ctx context.Context, row *sandbox.Row[*box]) (s stack, _ error) {
	b, running := row.Data, row.Sandbox().State == sandbox.Running
	if len(b.rec.Layers) >= p.maxLayers(b) {
		return s, fmt.Errorf("%w: the disk is made of %d layers already; export it and create from that image", sandbox.ErrExhausted, len(b.rec.Layers))
	}
	if err := p.store.room(); err != nil {
		return s, err
	}
	thaw := func() error { return nil }
	if running {
		switch err := b.group.Freeze(ctx); {
		case err == nil:
			thaw = func() error { return b.group.Thaw(context.WithoutCancel(ctx)) }
		case !errors.Is(err, isolate.ErrNoFreezer):
			return s, err
		case !p.store.subvol:
			return s, fmt.Errorf("%w: %w, so only a stopped sandbox can be copied here; stop it first", sandbox.ErrState, err)
		}
	}
	layers := slices.Clone(b.rec.Layers)
	layers[len(layers)-1] = newLayer()
	p.hold(layers...)
	s = stack{Layers: layers, Base: b.rec.Base, Image: b.rec.Image, Ref: b.rec.Ref}
	if err := errors.Join(p.store.copy(ctx, b.upper(), layers[len(layers)-1]), thaw()); err != nil {
		return s, errors.Join(err, p.drop(layers...))
	}
	return s, nil
}
