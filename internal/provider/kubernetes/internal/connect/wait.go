package connect

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/cove-sandbox/cove/internal/network/tunnel"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/api"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/box"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/cluster"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/create"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/watch"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// Intervals and timeouts of the wait for a Pod.
const (
	minPause = 5 * time.Millisecond // between probes
	maxPause = 200 * time.Millisecond
	// probeTimeout bounds a probe; shortProbeTimeout bounds a probe of a Pod that may not run yet.
	probeTimeout      = 5 * time.Second
	shortProbeTimeout = time.Second
	// reportTimeout is how long a kubelet may take to report that a Pod runs.
	reportTimeout = 10 * time.Second
	// queryInterval is the interval of queries in addition to the watch, and the timeout of a query.
	queryInterval = 5 * time.Second
	// pullTimeout is how long a Pod may take to start, including the download of its image.
	pullTimeout = 15 * time.Minute
)

// WaitRunning waits until the first process of the next Pod answers, and makes it the current Pod.
func (c *Connector) WaitRunning(ctx context.Context, b *box.Box) error {
	name := b.Record.PodName()
	err := c.WaitPod(ctx, b, name, c.Via(b, name))
	if err == nil {
		b.Pod.Set(name)
	}
	return err
}

// WaitPod waits until the first process of a Pod answers. It probes as soon as the Pod has an address, because
// a kubelet reports the start only after a second.
func (c *Connector) WaitPod(ctx context.Context, b *box.Box, name string, client *tunnel.Client) error {
	changed, unsubscribe := c.Pods.Subscribe(name)
	defer unsubscribe()
	deadline, cancel := context.WithTimeout(ctx, pullTimeout)
	defer cancel()
	query := time.NewTicker(queryInterval)
	defer query.Stop()
	var schedule, ready <-chan time.Time // timeouts without a node, and without an answer
	var last error
	for pause := minPause; ; {
		p, err := c.startingPod(ctx, b, name)
		if err != nil {
			return err
		}
		why, waits := p.Unschedulable()
		if !waits {
			schedule = nil
		} else if schedule == nil {
			schedule = time.After(c.Config.ScheduleTimeout)
		}
		if p.Started() && ready == nil {
			ready = time.After(c.Config.ReadyTimeout)
		}
		var retry <-chan time.Time
		if p.Status.PodIP != "" {
			if last = probe(deadline, client, p.Started()); last == nil {
				c.Pods.SetAnswered(name)
				return nil
			}
			retry = time.After(pause)
			pause = min(pause*5/4, maxPause)
		}
		select {
		case <-changed:
		case <-retry:
		case <-schedule:
			if schedule = nil; c.Provisioning(ctx, b) {
				continue
			}
			return fmt.Errorf("%w: no node can run the sandbox: %s", sandbox.ErrExhausted, why)
		case <-ready:
			return fmt.Errorf("%w: its first process does not answer: %w", sandbox.ErrNotReady, last)
		case <-deadline.Done():
			if err := context.Cause(ctx); err != nil { // both have ended, and ctx has the cause
				return fmt.Errorf("%w: its Pod has not started%s", err, p.Waiting())
			}
			return fmt.Errorf("%w: its Pod has not started in %v%s", sandbox.ErrNotReady, pullTimeout, p.Waiting())
		case <-query.C:
			c.query(ctx, b.API, name)
		}
	}
}

// startingPod returns a Pod, or why it will not start.
func (c *Connector) startingPod(ctx context.Context, b *box.Box, name string) (watch.Pod, error) {
	p, ok := c.Pods.Get(name)
	if !ok {
		return p, fmt.Errorf("%w: its Pod was removed", sandbox.ErrNotReady)
	}
	if err := p.Fault(); err != nil {
		return p, err
	}
	if why, ended := p.Ended(); ended {
		return p, fmt.Errorf("%w: the program %s%s", sandbox.ErrNotReady, why, c.lastOutput(ctx, b))
	}
	return p, nil
}

// probe checks whether the first process of a Pod answers. The timeout is short before the Pod has started,
// because the watch is likely to report something sooner.
func probe(ctx context.Context, c *tunnel.Client, started bool) error {
	timeout := probeTimeout
	if !started {
		timeout = shortProbeTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	_, err := c.Stats(ctx)
	return err
}

// WaitReported waits until the cluster reports that a Pod runs; before, it does not know the Pod's output and
// image. The first process can answer earlier. After a timeout, the caller continues without them.
func (c *Connector) WaitReported(ctx context.Context, name string) {
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	changed, unsubscribe := c.Pods.Subscribe(name)
	defer unsubscribe()
	for c.Pods.Unreported(name) {
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
}

// query refreshes a Pod in the cache in case the watch is late.
func (c *Connector) query(ctx context.Context, ns *api.Client, name string) {
	ctx, cancel := context.WithTimeout(ctx, queryInterval)
	defer cancel()
	var p watch.Pod
	switch err := ns.Get(ctx, cluster.Pods, name, &p); {
	case err == nil:
		c.Pods.Refresh(p)
	case api.IsMissing(err):
		c.Pods.Drop(name)
	}
}

// WaitReady waits until the server answers its ready path with status 200.
func (c *Connector) WaitReady(ctx context.Context, b *box.Box) error {
	spec, name := b.Record.Sandbox.Spec, b.Record.PodName()
	timeout := spec.Server.ReadyTimeout
	if timeout == 0 {
		timeout = c.Config.ReadyTimeout
	}
	deadline, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	changed, unsubscribe := c.Pods.Subscribe(name)
	defer unsubscribe()
	last := errors.New("the server does not answer")
	for pause := minPause; ; pause = min(pause*5/4, maxPause) {
		err := request(deadline, b.Endpoint(0), create.ReadyPath(spec))
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case deadline.Err() != nil:
			return fmt.Errorf("%w in %v: %w%s", sandbox.ErrNotReady, timeout, last, c.lastOutput(ctx, b))
		}
		last = err
		select {
		case <-deadline.Done():
		case <-time.After(pause):
		case <-changed:
			p, ok := c.Pods.Get(name)
			if why, ended := p.Ended(); ended || !ok {
				if !ok {
					why = "was removed with its Pod"
				}
				return fmt.Errorf("%w: the program %s%s", sandbox.ErrNotReady, why, c.lastOutput(ctx, b))
			}
		}
	}
}

// request sends one request to a server.
func request(ctx context.Context, ep sandbox.Endpoint, path string) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://sandbox"+path, nil)
	if err != nil {
		return err
	}
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) { return ep.Dial(ctx) }
	resp, err := (&http.Transport{DisableKeepAlives: true, MaxResponseHeaderBytes: 16 << 10, DialContext: dial}).RoundTrip(req)
	if err != nil {
		return err
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s returned %s", path, resp.Status)
	}
	return nil
}
