package pool

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/cove-sandbox/cove/internal/sandbox"
)

const (
	initPath = "/v1/sandbox/init"
	// initWait is the timeout of the request, which can write many files.
	initWait = 10 * time.Second
	// maxReply is the maximum size of a reply.
	maxReply = 64 << 10
	// readyEvery is the interval at which a sandbox is polled while its start hooks run.
	readyEvery = 10 * time.Millisecond
	readyWait  = 30 * time.Second
)

// BindHTTP initializes the server inside for its owner by a request that works only once, and waits until
// the server is ready. endpoint returns the port of the server. The Spec must have the Env with which the
// server was started. Errors do not contain the request.
func BindHTTP(endpoint func(ctx context.Context, id string) (sandbox.Endpoint, error)) func(context.Context, sandbox.Sandbox, Init) error {
	return func(ctx context.Context, sb sandbox.Sandbox, in Init) error {
		ep, err := endpoint(ctx, sb.ID)
		if err != nil {
			return err
		}
		tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return ep.Dial(ctx) }}
		defer tr.CloseIdleConnections()
		g := guest{transport: tr, env: sb.Spec.Env}
		ready, err := g.init(ctx, in)
		if err != nil || ready {
			return err
		}
		g.env = in.Env
		return g.awaitReady(ctx, sb.Spec.Server)
	}
}

// guest is the server inside.
type guest struct {
	transport *http.Transport
	env       map[string]string // of its start
}

func (g guest) send(ctx context.Context, method, path string, body []byte) (int, []byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://sandbox"+path, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	// If the environment requires authentication, its key is valid.
	if token := g.env["AUTH_TOKEN"]; token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	if key := g.env["AIO_API_KEY"]; key != "" {
		req.Header.Set("X-API-Key", key)
	}
	res, err := g.transport.RoundTrip(req)
	if err != nil {
		return 0, nil, err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(io.LimitReader(res.Body, maxReply))
	return res.StatusCode, b, err
}

// init sends the request and reports whether the sandbox is ready.
func (g guest) init(ctx context.Context, in Init) (ready bool, err error) {
	body, err := json.Marshal(in)
	if err != nil {
		return false, err
	}
	ctx, cancel := context.WithTimeout(ctx, initWait)
	defer cancel()
	status, reply, err := g.send(ctx, http.MethodPost, initPath, body)
	if err != nil {
		return false, err
	}
	switch status {
	case http.StatusOK:
	case http.StatusConflict:
		return false, ErrBound
	case http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity:
		return false, fmt.Errorf("%w: status %d", ErrRefused, status)
	default:
		return false, fmt.Errorf("%s: unexpected status %d", initPath, status)
	}
	var out struct {
		Ready bool `json:"ready"`
	}
	if err := json.Unmarshal(reply, &out); err != nil {
		return false, fmt.Errorf("%s: invalid reply: %w", initPath, err)
	}
	return out.Ready, nil
}

// awaitReady waits for the start hooks.
func (g guest) awaitReady(ctx context.Context, srv sandbox.Server) error {
	wait, path := srv.ReadyTimeout, srv.ReadyPath
	if wait == 0 {
		wait = readyWait
	}
	if path == "" {
		path = "/readyz"
	}
	ctx, cancel := context.WithTimeoutCause(ctx, wait, fmt.Errorf("%w in %v", sandbox.ErrNotReady, wait))
	defer cancel()
	tick := time.NewTicker(readyEvery)
	defer tick.Stop()
	for {
		if status, _, err := g.send(ctx, http.MethodGet, path, nil); err == nil && status == http.StatusOK {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}
