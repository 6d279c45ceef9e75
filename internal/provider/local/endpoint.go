package local

import (
	"context"
	"fmt"
	"net"

	"github.com/cove-sandbox/cove/internal/sandbox"
)

// Endpoint implements sandbox.Provider.
func (p *Provider) Endpoint(ctx context.Context, id string, port int) (sandbox.Endpoint, error) {
	sb, err := p.runner.Get(ctx, id)
	if err != nil {
		return sandbox.Endpoint{}, err
	}
	if port != 0 {
		if err := sandbox.CheckPort(port); err != nil {
			return sandbox.Endpoint{}, fmt.Errorf("%w: %w", sandbox.ErrInvalid, err)
		}
	}
	if sb.State != sandbox.Running && sb.State != sandbox.Paused {
		return sandbox.Endpoint{}, fmt.Errorf("%w: sandbox %q is %s; start it first", sandbox.ErrState, sb.Spec.Name, sb.State)
	}
	return p.sockets.Endpoint(p.runner.Sockets.Dir(id), sb, port), nil
}

// Egress implements sandbox.Egresser.
func (p *Provider) Egress(ctx context.Context, id string) (net.Listener, error) {
	if _, err := p.runner.Get(ctx, id); err != nil {
		return nil, err
	}
	return p.runner.Sockets.ListenEgress(id)
}
