package tunnel_test

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"testing"

	"github.com/cove-sandbox/cove/internal/network/tunnel"
)

// opener counts the connections of a client, and can cut them.
type opener struct {
	*rig
	mu    sync.Mutex
	conns []net.Conn
}

func (o *opener) open(ctx context.Context) (net.Conn, error) {
	c, err := o.rig.open(ctx)
	if err == nil {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.conns = append(o.conns, c)
	}
	return c, err
}

func (o *opener) opened() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.conns)
}

func (o *opener) cut() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, c := range o.conns {
		c.Close()
	}
}

// wantEcho dials the echo and uses it.
func (o *opener) wantEcho(c *tunnel.Client) {
	o.t.Helper()
	conn, err := c.Dial(o.t.Context(), 7)
	if err != nil {
		o.t.Fatal(err)
	}
	defer conn.Close()
	got := make([]byte, 5)
	if _, err := conn.Write([]byte("hello")); err != nil {
		o.t.Fatal(err)
	}
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != "hello" {
		o.t.Errorf("got %q, %v, want an echo", got, err)
	}
}

// TestSpares: connections that were opened in advance serve the next dials. Dials succeed without them if they are cut or dropped.
func TestSpares(t *testing.T) {
	t.Parallel()
	o := &opener{rig: newRig(t)}
	c, err := tunnel.NewClient(o.hub.cert, o.hub.key, o.sandbox.pin, o.open)
	if err != nil {
		t.Fatal(err)
	}
	defer c.DropSpares()
	want := func(n int, what string) {
		t.Helper()
		if got := o.opened(); got != n {
			t.Errorf("%s: %d connections were opened, want %d", what, got, n)
		}
	}
	c.OpenSpares(t.Context(), 3)
	want(3, "in advance")
	o.wantEcho(c)
	o.wantEcho(c)
	want(3, "two dials")
	if _, err := c.Dial(t.Context(), 8); !errors.Is(err, tunnel.ErrRefused) {
		t.Errorf("got %v, want a refusal", err)
	}
	want(3, "a refusal, which is an answer")
	o.wantEcho(c)
	want(4, "no spare is left")
	c.OpenSpares(t.Context(), 2)
	o.cut()
	o.wantEcho(c)
	want(7, "spares that were cut")
	c.OpenSpares(t.Context(), 1)
	c.DropSpares()
	o.wantEcho(c)
	want(9, "spares that were dropped")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	c.OpenSpares(ctx, 5)
	if _, err := c.Dial(ctx, 7); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want that it was canceled", err)
	}
}

// TestSparesWithAnotherKey: a client with another key cannot wait, either.
func TestSparesWithAnotherKey(t *testing.T) {
	t.Parallel()
	o := &opener{rig: newRig(t)}
	stranger := newIdentity(t)
	c, err := tunnel.NewClient(stranger.cert, stranger.key, o.sandbox.pin, o.open)
	if err != nil {
		t.Fatal(err)
	}
	c.OpenSpares(t.Context(), 2)
	if _, err := c.Dial(t.Context(), 7); err == nil {
		t.Error("a client with another key was accepted")
	}
	if n := o.opened(); n != 2 {
		t.Errorf("%d connections, want one attempt in advance and one to dial", n)
	}
}
