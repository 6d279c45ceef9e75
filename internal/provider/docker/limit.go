package docker

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"

	"github.com/containerd/errdefs"
	engine "github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/cove-sandbox/cove/internal/sandbox"
)

// limit applies changed resources, except the number of files, which changes at the next start. Podman 4.3 has a different
// call whose effect ends with the container: the record says that it must be repeated.
func (r *runner) limit(ctx context.Context, b *box, spec sandbox.Spec) error {
	call, cancel := steady(ctx)
	defer cancel()
	limits := r.resources(spec)
	_, err := r.engine.ContainerUpdate(call, b.rec.Container, client.ContainerUpdateOptions{Resources: &limits})
	if errdefs.IsNotFound(err) {
		var got client.ContainerInspectResult
		if got, err = r.engine.ContainerInspect(call, b.rec.Container, client.ContainerInspectOptions{}); err == nil {
			b.rec.Relimit = true
			if got.Container.State == nil || !got.Container.State.Running {
				return nil
			}
			err = r.limitRunning(call, b.rec.Container, limits)
		}
	}
	if err != nil {
		return fmt.Errorf("change the limits of the container: %w", explain(err))
	}
	return nil
}

// cpuPeriod is the enforcement interval of a CPU limit, in microseconds.
const cpuPeriod = 100_000

// limitRunning changes the limits of a running container with the API of Podman.
func (r *runner) limitRunning(ctx context.Context, id string, limits engine.Resources) error {
	cpu := map[string]int64{}
	if limits.CPUShares > 0 {
		cpu["shares"] = limits.CPUShares
	}
	if limits.NanoCPUs > 0 {
		cpu["quota"], cpu["period"] = limits.NanoCPUs*cpuPeriod/1_000_000_000, cpuPeriod
	}
	memory := map[string]int64{"limit": limits.Memory, "swap": limits.MemorySwap}
	if limits.MemoryReservation > 0 {
		memory["reservation"] = limits.MemoryReservation
	}
	body, err := json.Marshal(map[string]map[string]int64{"cpu": cpu, "memory": memory, "pids": {"limit": *limits.PidsLimit}})
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://engine/v4.3.0/libpod/containers/"+id+"/update", bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	dial := r.engine.Dialer()
	tr := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) }}
	resp, err := tr.RoundTrip(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode >= http.StatusMultipleChoices {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
		return fmt.Errorf("the engine returned %s: %s", resp.Status, bytes.TrimSpace(text))
	}
	return nil
}
