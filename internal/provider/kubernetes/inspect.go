package kubernetes

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"time"

	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/box"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/cluster"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/connect"
	"github.com/cove-sandbox/cove/internal/sandbox"
	"github.com/cove-sandbox/cove/internal/system/containerinit"
)

// maxStoredLog bounds the stored output of a stopped sandbox.
const maxStoredLog = 64 << 10

// Logs implements sandbox.Logger.
func (p *Provider) Logs(ctx context.Context, id string, limit int64) (out []byte, err error) {
	err = p.with(ctx, id, func(ctx context.Context, row *sandbox.Row[*box.Box]) error {
		if row.Sandbox().State != sandbox.Stopped {
			out, err = p.connector.Output(ctx, row.Data, limit)
			return err
		}
		var stored cluster.Secret
		if err := row.Data.API.Get(ctx, cluster.Secrets, id, &stored); err != nil {
			return fmt.Errorf("read logs: %w", err)
		}
		out = connect.Tail(stored.Data[box.LogKey], limit)
		return nil
	})
	return out, err
}

// Stats implements sandbox.Stater. The first process inside reads its control groups; a metrics server is
// not required.
func (p *Provider) Stats(ctx context.Context, id string) (sandbox.Stats, error) {
	out := sandbox.Stats{CPU: -1, Memory: -1, Pids: -1, Disk: -1, OOMKills: -1, Time: time.Now()}
	err := p.with(ctx, id, func(ctx context.Context, row *sandbox.Row[*box.Box]) error {
		if row.Sandbox().State != sandbox.Running {
			out.Memory, out.Pids = 0, 0
			return nil
		}
		data, err := row.Data.Tunnel.Stats(ctx)
		if err != nil {
			return fmt.Errorf("measure Pod: %w", err)
		}
		used := containerinit.Usage{CPU: -1, Memory: -1, Pids: -1, OOMKills: -1}
		if err := json.Unmarshal(data, &used); err != nil {
			return fmt.Errorf("measure Pod: %w", err)
		}
		out.CPU, out.Memory, out.Pids, out.OOMKills = used.CPU, used.Memory, used.Pids, used.OOMKills
		return nil
	})
	return out, err
}

// Endpoint implements sandbox.Provider.
func (p *Provider) Endpoint(ctx context.Context, id string, port int) (ep sandbox.Endpoint, err error) {
	err = p.with(ctx, id, func(_ context.Context, row *sandbox.Row[*box.Box]) error {
		sb := row.Sandbox()
		if port != 0 {
			if err := sandbox.CheckPort(port); err != nil {
				return fmt.Errorf("%w: %w", sandbox.ErrInvalid, err)
			}
		}
		if sb.State != sandbox.Running {
			return fmt.Errorf("%w: sandbox %q is %s; start it first", sandbox.ErrState, sb.Spec.Name, sb.State)
		}
		ep = row.Data.Endpoint(port)
		return nil
	})
	return ep, err
}

// Egress implements sandbox.Egresser.
func (p *Provider) Egress(ctx context.Context, id string) (l net.Listener, err error) {
	err = p.with(ctx, id, func(_ context.Context, row *sandbox.Row[*box.Box]) error {
		l = p.connector.Listen(row.Data)
		return nil
	})
	return l, err
}
