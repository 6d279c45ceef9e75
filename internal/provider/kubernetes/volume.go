package kubernetes

import (
	"context"

	"github.com/cove-sandbox/cove/internal/sandbox"
)

// CreateVolume implements sandbox.Volumer.
func (p *Provider) CreateVolume(ctx context.Context, owner, name string) (sandbox.VolumeInfo, error) {
	ctx, done, err := p.table.Begin(ctx)
	if err != nil {
		return sandbox.VolumeInfo{}, err
	}
	defer done()
	return p.volumes.Create(ctx, owner, name)
}

// Volumes implements sandbox.Volumer.
func (p *Provider) Volumes(ctx context.Context, owner string) ([]sandbox.VolumeInfo, error) {
	ctx, done, err := p.table.Begin(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	return p.volumes.List(ctx, owner)
}

// DeleteVolume implements sandbox.Volumer.
func (p *Provider) DeleteVolume(ctx context.Context, owner, name string) error {
	ctx, done, err := p.table.Begin(ctx)
	if err != nil {
		return err
	}
	defer done()
	return p.volumes.Delete(ctx, owner, name)
}
