package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/network/tunnel"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/api"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// connect makes the tunnel to the sandbox, wherever its Pod is.
func (r *runner) connect(b *box) (err error) {
	b.tunnel, err = tunnel.NewClient(r.hub.cert, r.hub.key, b.rec.Pin, func(ctx context.Context) (net.Conn, error) {
		pod, _ := b.where.get()
		return r.dial(ctx, b.api, pod)
	})
	return err
}

// dial connects to the port of a Pod.
func (r *runner) dial(ctx context.Context, place *client, pod string) (net.Conn, error) {
	switch {
	case pod == "":
		return nil, errors.New("the sandbox has no Pod at the moment")
	case r.cfg.Reach == ReachAPI:
		// Through the API server and the kubelet.
		return place.Forward(ctx, place.Address(pods, []string{pod, "portforward"}, url.Values{"ports": {strconv.Itoa(Port)}}))
	}
	st, _ := r.pods.get(pod)
	if st.Status.PodIP == "" {
		return nil, errors.New("the Pod of the sandbox has no address")
	}
	var d net.Dialer
	return d.DialContext(ctx, "tcp", net.JoinHostPort(st.Status.PodIP, strconv.Itoa(Port)))
}

// Endpoint implements sandbox.Provider.
func (p *Provider) Endpoint(ctx context.Context, id string, port int) (ep sandbox.Endpoint, err error) {
	err = p.with(ctx, id, func(_ context.Context, row *sandbox.Row[*box]) error {
		sb := row.Sandbox()
		if port != 0 {
			if err := sandbox.CheckPort(port); err != nil {
				return fmt.Errorf("%w: %w", sandbox.ErrInvalid, err)
			}
		}
		if sb.State != sandbox.Running {
			return fmt.Errorf("%w: sandbox %q is %s; start it first", sandbox.ErrState, sb.Spec.Name, sb.State)
		}
		ep = row.Data.endpoint(port)
		return nil
	})
	return ep, err
}

// endpoint returns how to reach a port; 0 is that of the server.
func (b *box) endpoint(port int) sandbox.Endpoint {
	if port == 0 {
		port = b.rec.Sandbox.Spec.Server.Port
	}
	return sandbox.Endpoint{Address: fmt.Sprintf("port %d of Pod %s", port, b.rec.podName()),
		Dial: func(ctx context.Context) (net.Conn, error) {
			return b.tunnel.Dial(ctx, port)
		}}
}

// Egress implements sandbox.Egresser.
func (p *Provider) Egress(ctx context.Context, id string) (l net.Listener, err error) {
	err = p.with(ctx, id, func(_ context.Context, row *sandbox.Row[*box]) error {
		b := row.Data
		b.closeEgress()
		turn := p.pace.turn()
		// It outlives Pods: with each start, there is another.
		l = b.tunnel.Via(func(ctx context.Context) (net.Conn, error) {
			if err := waitUntil(ctx, turn); err != nil {
				return nil, err
			}
			for {
				pod, changed := b.where.get()
				if pod != "" {
					return p.runner.dial(ctx, b.api, pod)
				}
				select {
				case <-ctx.Done():
					return nil, context.Cause(ctx)
				case <-changed:
				}
			}
		}).Listen(address(id))
		b.egress = l
		return nil
	})
	return l, err
}

// connectEvery is the time between the first connections to two sandboxes.
const connectEvery = 2 * time.Millisecond

// pace spreads over time what nobody waits for. A hub that starts would otherwise begin thousands of
// handshakes at once, of which none ends in time, and begin them again.
type pace struct {
	mu   sync.Mutex
	next time.Time
}

// turn returns when to begin.
func (p *pace) turn() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	at := time.Now()
	if p.next.After(at) {
		at = p.next
	}
	p.next = at.Add(connectEvery)
	return at
}

func waitUntil(ctx context.Context, at time.Time) error {
	wait := time.Until(at)
	if wait <= 0 {
		return nil
	}
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(wait):
		return nil
	}
}

// address is a sandbox as the address of a listener.
type address string

func (a address) Network() string { return "tunnel" }
func (a address) String() string  { return string(a) }

// Pauses between probes of a server that is starting.
const (
	minPause   = 5 * time.Millisecond
	maxPause   = 200 * time.Millisecond
	probeTime  = 5 * time.Second
	shortProbe = time.Second // the same, of a Pod that is not known to run
	// reportTime is how long a kubelet may take to report what it has started.
	reportTime = 10 * time.Second
	// lookTime is the pause between looks at a Pod of which nothing is heard.
	lookTime = 5 * time.Second
	// pullTime is how long an image may take.
	pullTime = 15 * time.Minute
)

// waitRunning waits until the first process of the sandbox's Pod answers.
func (r *runner) waitRunning(ctx context.Context, b *box) error {
	name := b.rec.podName()
	err := r.waitPod(ctx, b, name, b.tunnel.Via(func(ctx context.Context) (net.Conn, error) { return r.dial(ctx, b.api, name) }))
	if err == nil {
		b.where.set(name)
	}
	return err
}

// waitPod waits until the first process of a Pod answers. A kubelet takes a second to report what it has started: so we
// ask as soon as the Pod has an address.
func (r *runner) waitPod(ctx context.Context, b *box, name string, c *tunnel.Client) error {
	changed, forget := r.pods.watch(name)
	defer forget()
	deadline, cancel := context.WithTimeout(ctx, pullTime)
	defer cancel()
	look := time.NewTicker(lookTime)
	defer look.Stop()
	var homeless, silent <-chan time.Time // they end the wait for a node, and for the first process
	var last error
	for pause := minPause; ; {
		st, ok := r.pods.get(name)
		if !ok {
			return fmt.Errorf("%w: its Pod was removed", sandbox.ErrNotReady)
		}
		if err := st.fault(); err != nil {
			return err
		}
		if why, ended := st.ended(); ended {
			return fmt.Errorf("%w: the program %s%s", sandbox.ErrNotReady, why, r.lastOutput(ctx, b))
		}
		why, waits := st.unschedulable()
		if !waits {
			homeless = nil
		} else if homeless == nil {
			homeless = time.After(r.cfg.ScheduleTimeout)
		}
		if st.started() && silent == nil {
			silent = time.After(r.cfg.ReadyTimeout)
		}
		var again <-chan time.Time
		if st.Status.PodIP != "" {
			if last = probe(deadline, c, st.started()); last == nil {
				r.pods.noteAnswer(name)
				return nil
			}
			again = time.After(pause)
			pause = min(pause*5/4, maxPause)
		}
		select {
		case <-changed:
		case <-again:
		case <-homeless:
			if homeless = nil; r.volumes.filling(ctx, b) {
				continue
			}
			return fmt.Errorf("%w: no node can take the sandbox: %s", sandbox.ErrExhausted, why)
		case <-silent:
			return fmt.Errorf("%w: its first process does not answer: %w", sandbox.ErrNotReady, last)
		case <-deadline.Done():
			if err := context.Cause(ctx); err != nil { // both are over, and ctx knows why
				return fmt.Errorf("%w: its Pod is not started%s", err, st.waiting())
			}
			return fmt.Errorf("%w: its Pod was not started in %v%s", sandbox.ErrNotReady, pullTime, st.waiting())
		case <-look.C:
			r.look(ctx, b.api, name)
		}
	}
}

// probe asks whether the first process of a Pod answers. As long as it may not be there, something else is more likely
// to be heard of the Pod: then the wait is short.
func probe(ctx context.Context, c *tunnel.Client, started bool) error {
	wait := probeTime
	if !started {
		wait = shortProbe
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	_, err := c.Stats(ctx)
	return err
}

// waitReported waits until the cluster knows that the program of a Pod runs, which the sandbox may have told us before:
// only then it knows the program's output and image. If that takes too long, the caller does without.
func (r *runner) waitReported(ctx context.Context, name string) {
	ctx, cancel := context.WithTimeout(ctx, reportTime)
	defer cancel()
	changed, forget := r.pods.watch(name)
	defer forget()
	for r.pods.ahead(name) {
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
}

// look asks for the state of a Pod, in case the watch is late.
func (r *runner) look(ctx context.Context, place *client, name string) {
	ctx, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	var st podState
	switch err := place.Get(ctx, pods, name, &st); {
	case err == nil:
		r.pods.refresh(st)
	case api.IsMissing(err):
		r.pods.drop(name)
	}
}

// started reports whether the program runs.
func (st podState) started() bool {
	for _, c := range st.Status.ContainerStatuses {
		if c.Name == mainContainer && c.State.Running != nil {
			return st.Status.PodIP != ""
		}
	}
	return false
}

// hasRun reports whether the program has been started, also if it has ended.
func (st podState) hasRun() bool {
	for _, c := range st.Status.ContainerStatuses {
		if c.Name == mainContainer && (c.State.Running != nil || c.State.Terminated != nil) {
			return true
		}
	}
	return false
}

// fault is why a Pod will not start; nil if it may.
func (st podState) fault() error {
	for _, all := range [][]containerStatus{st.Status.InitContainerStatuses, st.Status.ContainerStatuses} {
		for _, c := range all {
			w := c.State.Waiting
			if w == nil {
				continue
			}
			switch w.Reason {
			case "ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError",
				"RegistryUnavailable", "SignatureValidationFailed":
				return fmt.Errorf("%w: the image of container %q cannot be pulled: %s: %s", sandbox.ErrInvalid, c.Name, w.Reason, w.Message)
			case "CreateContainerConfigError", "CreateContainerError", "RunContainerError":
				return fmt.Errorf("%w: container %q cannot be started: %s: %s", sandbox.ErrNotReady, c.Name, w.Reason, w.Message)
			}
		}
	}
	return nil
}

// waiting says what a Pod that is not started waits for, as far as it tells.
func (st podState) waiting() string {
	if why, waits := st.unschedulable(); waits {
		return "; no node can take it: " + why
	}
	for _, all := range [][]containerStatus{st.Status.InitContainerStatuses, st.Status.ContainerStatuses} {
		for _, c := range all {
			if w := c.State.Waiting; w != nil {
				return fmt.Sprintf("; container %q waits (%s), perhaps for its image", c.Name, w.Reason)
			}
		}
	}
	return ""
}

// unschedulable reports whether no node takes the Pod, and why.
func (st podState) unschedulable() (why string, waits bool) {
	for _, c := range st.Status.Conditions {
		if c.Type == "PodScheduled" && c.Status == "False" && c.Reason == "Unschedulable" {
			return c.Message, true
		}
	}
	return "", false
}

// waitReady waits until the server answers ReadyPath with 200.
func (r *runner) waitReady(ctx context.Context, b *box) error {
	srv, name := b.rec.Sandbox.Spec.Server, b.rec.podName()
	timeout := srv.ReadyTimeout
	if timeout == 0 {
		timeout = r.cfg.ReadyTimeout
	}
	path := r.plan(b.rec.Sandbox.Spec).Probe.Path
	deadline, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	changed, forget := r.pods.watch(name)
	defer forget()
	last := errors.New("the server does not answer")
	for pause := minPause; ; pause = min(pause*5/4, maxPause) {
		err := askServer(deadline, b.endpoint(0), path)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case deadline.Err() != nil:
			return fmt.Errorf("%w in %v: %w%s", sandbox.ErrNotReady, timeout, last, r.lastOutput(ctx, b))
		}
		last = err
		select {
		case <-deadline.Done():
		case <-time.After(pause):
		case <-changed:
			st, ok := r.pods.get(name)
			if why, ended := st.ended(); ended || !ok {
				if !ok {
					why = "was removed with its Pod"
				}
				return fmt.Errorf("%w: the program %s%s", sandbox.ErrNotReady, why, r.lastOutput(ctx, b))
			}
		}
	}
}

// askServer sends one request.
func askServer(ctx context.Context, ep sandbox.Endpoint, path string) error {
	ctx, cancel := context.WithTimeout(ctx, probeTime)
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
		return fmt.Errorf("%s answers %s", path, resp.Status)
	}
	return nil
}
