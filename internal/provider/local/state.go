package local

import (
	"context"
	"fmt"

	"github.com/cove-sandbox/cove/internal/provider/local/internal/disk"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// Create implements sandbox.Provider.
func (p *Provider) Create(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	if err := p.runner.Check(spec); err != nil {
		return sandbox.Sandbox{}, err
	}
	ctx, done, err := p.runner.Begin(ctx)
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	defer done()
	var from disk.Disk
	if spec.Snapshot != "" {
		if from, err = p.snapshots.Get(spec.Owner, spec.Snapshot); err != nil {
			return sandbox.Sandbox{}, err
		}
		defer p.disks.Release(from)
		if spec.Image != "" && spec.Image != from.Ref {
			return sandbox.Sandbox{}, fmt.Errorf("%w: snapshot %q was taken on image %q, not %q; leave the image out",
				sandbox.ErrInvalid, spec.Snapshot, from.Ref, spec.Image)
		}
	}
	return p.runner.Create(ctx, spec, from)
}

// Get implements sandbox.Provider.
func (p *Provider) Get(ctx context.Context, id string) (sandbox.Sandbox, error) {
	return p.runner.Get(ctx, id)
}

// List implements sandbox.Provider.
func (p *Provider) List(ctx context.Context, f sandbox.Filter) ([]sandbox.Sandbox, error) {
	return p.runner.List(ctx, f)
}

// Watch implements sandbox.Provider.
func (p *Provider) Watch(ctx context.Context) (<-chan sandbox.Event, error) {
	return p.runner.Watch(ctx)
}

// Update implements sandbox.Provider.
func (p *Provider) Update(ctx context.Context, id string, change func(*sandbox.Spec) error) (sandbox.Sandbox, error) {
	return p.runner.Update(ctx, id, change)
}

// Delete implements sandbox.Provider.
func (p *Provider) Delete(ctx context.Context, id string) error { return p.runner.Delete(ctx, id) }

// Pause implements sandbox.Provider.
func (p *Provider) Pause(ctx context.Context, id string) error { return p.runner.Pause(ctx, id) }

// PauseToDisk implements sandbox.Saver.
func (p *Provider) PauseToDisk(ctx context.Context, id string) error {
	return p.runner.Saver().PauseToDisk(ctx, id)
}

// Resume implements sandbox.Provider.
func (p *Provider) Resume(ctx context.Context, id string) error { return p.runner.Resume(ctx, id) }

// Stop implements sandbox.Provider.
func (p *Provider) Stop(ctx context.Context, id string) error { return p.runner.Stop(ctx, id) }

// Start implements sandbox.Provider.
func (p *Provider) Start(ctx context.Context, id string) error { return p.runner.Start(ctx, id) }

// Logs implements sandbox.Logger.
func (p *Provider) Logs(ctx context.Context, id string, limit int64) ([]byte, error) {
	return p.runner.Logs(ctx, id, limit)
}

// Stats implements sandbox.Stater.
func (p *Provider) Stats(ctx context.Context, id string) (sandbox.Stats, error) {
	return p.runner.Stats(ctx, id)
}
