package docker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/cove-sandbox/cove/internal/sandbox"
	"github.com/cove-sandbox/cove/internal/system/containerinit"
	"github.com/cove-sandbox/cove/internal/system/isolate/control"
	"github.com/cove-sandbox/cove/internal/system/isolate/unixsocket"
)

// Endpoint implements sandbox.Provider.
func (p *Provider) Endpoint(ctx context.Context, id string, port int) (sandbox.Endpoint, error) {
	_, row, release, err := p.acquire(ctx, id)
	if err != nil {
		return sandbox.Endpoint{}, err
	}
	defer release()
	sb := row.Sandbox()
	if port != 0 {
		if err := sandbox.CheckPort(port); err != nil {
			return sandbox.Endpoint{}, fmt.Errorf("%w: %w", sandbox.ErrInvalid, err)
		}
	}
	if sb.State != sandbox.Running && sb.State != sandbox.Paused {
		return sandbox.Endpoint{}, fmt.Errorf("%w: sandbox %q is %s; start it first", sandbox.ErrState, sb.Spec.Name, sb.State)
	}
	return row.Data.endpoint(port), nil
}

// endpoint returns the address of a port; 0 is the port of the server.
func (b *box) endpoint(port int) sandbox.Endpoint {
	if port == 0 {
		port = b.rec.Sandbox.Spec.Server.Port
	}
	address := fmt.Sprintf("%s port %d", b.rec.Sandbox.ID, port)
	if port == 0 {
		address = "the server of " + b.rec.Sandbox.ID
	}
	folder := filepath.Join(b.dir, controlName)
	return sandbox.Endpoint{Address: address, Dial: func(ctx context.Context) (net.Conn, error) {
		// The sandbox can write to the folder, so its files are opened relative to it.
		dir, err := os.Open(folder)
		if err != nil {
			return nil, err
		}
		defer dir.Close()
		return control.Dial(ctx, dir, containerinit.ControlName, port)
	}}
}

// Egress implements sandbox.Egresser.
func (p *Provider) Egress(ctx context.Context, id string) (net.Listener, error) {
	_, row, release, err := p.acquire(ctx, id)
	if err != nil {
		return nil, err
	}
	defer release()
	if err := row.Data.makeFolders(); err != nil {
		return nil, err
	}
	dir, err := os.Open(filepath.Join(row.Data.dir, hubName))
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	l, err := unixsocket.Listen(dir, containerinit.EgressName, 0o666)
	if err != nil {
		return nil, err // not a nil pointer in an interface
	}
	return l, nil
}

// Pauses between probes of a server that is starting.
const (
	minPause     = 2 * time.Millisecond
	maxPause     = 100 * time.Millisecond
	probeTimeout = 5 * time.Second
)

// waitReady waits until the server answers ReadyPath with 200.
func (r *runner) waitReady(ctx context.Context, b *box, ended <-chan struct{}) error {
	srv := b.rec.Sandbox.Spec.Server
	path, timeout := srv.ReadyPath, srv.ReadyTimeout
	if path == "" {
		path = "/readyz"
	}
	if timeout == 0 {
		timeout = r.cfg.ReadyTimeout
	}
	deadline, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	last := errors.New("the server does not answer")
	for pause := minPause; ; pause = min(pause*5/4, maxPause) {
		err := probe(deadline, b.endpoint(0), path)
		if err == nil {
			return nil
		}
		if deadline.Err() == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-ended:
			if reason, ended := r.ended(ctx, b); ended {
				return fmt.Errorf("%w: the program %s%s", sandbox.ErrNotReady, reason, r.lastOutput(ctx, b))
			}
		case <-deadline.Done():
			if ctx.Err() != nil { // both have ended, and ctx has the cause
				return context.Cause(ctx)
			}
			return fmt.Errorf("%w in %v: %w%s", sandbox.ErrNotReady, timeout, last, r.lastOutput(ctx, b))
		case <-time.After(pause):
		}
	}
}

// probe sends one request.
func probe(ctx context.Context, ep sandbox.Endpoint, path string) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://sandbox"+path, nil)
	if err != nil {
		return err
	}
	tr := &http.Transport{DisableKeepAlives: true, MaxResponseHeaderBytes: 16 << 10,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return ep.Dial(ctx) }}
	resp, err := tr.RoundTrip(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s returned %s", path, resp.Status)
	}
	return nil
}
