package kubernetes

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/api"
	"github.com/cove-sandbox/cove/internal/sandbox"
	"github.com/cove-sandbox/cove/internal/system/containerinit"
)

const (
	// maxLines bounds what is read of the logs, which may be many times of what is wanted.
	maxLines = "10000"
	// keptLog is how much output of a stopped sandbox is kept.
	keptLog = 64 << 10
)

// Logs implements sandbox.Logger.
func (p *Provider) Logs(ctx context.Context, id string, limit int64) (out []byte, err error) {
	err = p.with(ctx, id, func(ctx context.Context, row *sandbox.Row[*box]) error {
		if row.Sandbox().State != sandbox.Stopped {
			out, err = p.runner.readLogs(ctx, row.Data, limit)
			return err
		}
		var kept secret
		if err := row.Data.api.Get(ctx, secrets, id, &kept); err != nil {
			return fmt.Errorf("read logs: %w", err)
		}
		out = lastBytes(kept.Data[logName], limit)
		return nil
	})
	return out, err
}

// readLogs reads the end of the output of a Pod.
func (r *runner) readLogs(ctx context.Context, b *box, limit int64) ([]byte, error) {
	r.waitReported(ctx, b.rec.podName())
	query := url.Values{"container": {mainContainer}, "tailLines": {maxLines}}
	resp, err := b.api.Send(ctx, api.Call{Method: http.MethodGet,
		URL: b.api.Address(pods, []string{b.rec.podName(), "log"}, query), Accept: "*/*"})
	switch {
	case api.IsMissing(err), api.HasCode(err, http.StatusBadRequest): // the Pod has ended, or not yet begun
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read logs: %w", err)
	}
	defer resp.Body.Close()
	var end []byte
	chunk := make([]byte, 32<<10)
	for {
		n, err := resp.Body.Read(chunk)
		end = lastBytes(append(end, chunk[:n]...), limit)
		if err == io.EOF {
			return end, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read logs: %w", err)
		}
	}
}

func lastBytes(b []byte, limit int64) []byte {
	return b[max(0, int64(len(b))-max(limit, 0)):]
}

// lastOutput quotes what a program wrote that is not ready, or nothing.
func (r *runner) lastOutput(ctx context.Context, b *box) string {
	call, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	out, err := r.readLogs(call, b, 2<<10)
	if text := strings.TrimSpace(string(out)); err == nil && text != "" {
		return "; its last output: " + text
	}
	return ""
}

// Stats implements sandbox.Stater. The numbers are those of the control groups that the first
// process inside sees; a metrics server is not needed.
func (p *Provider) Stats(ctx context.Context, id string) (sandbox.Stats, error) {
	out := sandbox.Stats{CPU: -1, Memory: -1, Pids: -1, Disk: -1, OOMKills: -1, Time: time.Now()}
	err := p.with(ctx, id, func(ctx context.Context, row *sandbox.Row[*box]) error {
		if row.Sandbox().State != sandbox.Running {
			out.Memory, out.Pids = 0, 0
			return nil
		}
		data, err := row.Data.tunnel.Stats(ctx)
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
