package tunnel_test

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/cove-sandbox/cove/internal/network/tunnel"
)

// TestSuspend: programs are suspended until the hub resumes them or disconnects. The hub gets the result.
func TestSuspend(t *testing.T) {
	t.Parallel()
	resumed := make(chan struct{}, 10)
	var failing error
	r := newRigWith(t, func(c *tunnel.ServerConfig) {
		c.Suspend = func() (func(), error) {
			if failing != nil {
				return nil, failing
			}
			over := false
			return func() {
				if !over {
					over = true
					resumed <- struct{}{}
				}
			}, nil
		}
	})
	c := r.client(r.hub, r.sandbox.pin)
	release, err := c.Suspend(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-resumed:
		t.Error("programs resumed too early")
	default:
	}
	if err := release(); err != nil {
		t.Error(err)
	}
	<-resumed
	if err := release(); err != nil { // which does nothing
		t.Error(err)
	}
	// The hub gives up.
	ctx, cancel := context.WithCancel(t.Context())
	if release, err = c.Suspend(ctx); err != nil {
		t.Fatal(err)
	}
	cancel()
	<-resumed
	if err := release(); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want that it was canceled", err)
	}
	failing = errors.New("some processes do not stop")
	if _, err := c.Suspend(t.Context()); !errors.Is(err, tunnel.ErrRefused) || !strings.Contains(err.Error(), "do not stop") {
		t.Errorf("got %v, want why not", err)
	}
	other := newRig(t)
	if _, err := other.client(other.hub, other.sandbox.pin).Suspend(t.Context()); !errors.Is(err, tunnel.ErrRefused) {
		t.Errorf("got %v, want a refusal", err)
	}
}

// TestHostileSuspend: the hub detects invalid responses of a hostile sandbox.
func TestHostileSuspend(t *testing.T) {
	t.Parallel()
	hub, sandbox := newIdentity(t), newIdentity(t)
	settings, err := tunnel.Configure(sandbox.cert, sandbox.key, hub.pin)
	if err != nil {
		t.Fatal(err)
	}
	for what, reply := range map[string]struct {
		bytes []byte
		held  bool
	}{
		"disconnected at once":  {[]byte{0}, false},
		"an unknown status":     {[]byte{0, 7}, false},
		"disconnected too soon": {[]byte{0, 0}, true},
		"a refusal instead":     {[]byte{0, 0, 1, 'n', 'o'}, true},
	} {
		synctest.Test(t, func(t *testing.T) { // timeouts take no time
			c, err := tunnel.NewClient(hub.cert, hub.key, sandbox.pin, func(context.Context) (net.Conn, error) {
				near, far := net.Pipe()
				go respond(far, settings, reply.bytes)
				return near, nil
			})
			if err != nil {
				t.Fatal(err)
			}
			release, err := c.Suspend(t.Context())
			if (err == nil) != reply.held {
				t.Errorf("%s: got %v, want held %v", what, err, reply.held)
			}
			if err == nil && release() == nil {
				t.Errorf("%s: got no error", what)
			}
		})
	}
}

// TestSilentSuspend: a sandbox that does not respond does not block the hub forever.
func TestSilentSuspend(t *testing.T) {
	t.Parallel()
	hub, sandbox := newIdentity(t), newIdentity(t)
	settings, err := tunnel.Configure(sandbox.cert, sandbox.key, hub.pin)
	if err != nil {
		t.Fatal(err)
	}
	for what, words := range map[string][]byte{"does not suspend": {0}, "does not resume": {0, 0}} {
		synctest.Test(t, func(t *testing.T) {
			c, err := tunnel.NewClient(hub.cert, hub.key, sandbox.pin, func(context.Context) (net.Conn, error) {
				near, far := net.Pipe()
				go func() {
					s := tls.Server(far, settings)
					defer far.Close()
					if _, err := io.ReadFull(s, make([]byte, 3)); err == nil {
						s.Write(words)
						io.Copy(io.Discard, s)
					}
				}()
				return near, nil
			})
			if err != nil {
				t.Fatal(err)
			}
			release, err := c.Suspend(t.Context())
			if (err == nil) != (len(words) == 2) {
				t.Errorf("%s: got %v", what, err)
			}
			if err == nil && release() == nil {
				t.Errorf("%s: got no error", what)
			}
		})
	}
}
