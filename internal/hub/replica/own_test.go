//go:build linux

package replica

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"testing"

	"github.com/cove-sandbox/cove/internal/network/tunnel"
)

// TestNotToItself: a replica that has announced itself as active but does not serve yet forwards nothing to itself.
func TestNotToItself(t *testing.T) {
	t.Parallel()
	public, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	m := &Member{cfg: Config{Dir: t.TempDir(), Address: "127.0.0.1:0", Log: slog.New(slog.DiscardHandler)}, public: public,
		accepted: make(chan net.Conn), serves: make(chan struct{}), lobby: tunnel.Lobby{Max: 1}}
	m.life, m.end = context.WithCancel(t.Context())
	defer m.Close()
	if err := m.lead(); err != nil {
		t.Fatal(err)
	}
	c, err := m.dial(public.Addr())
	if err == nil {
		c.Close()
	}
	if !errors.Is(err, errOwn) {
		t.Errorf("got %v, want %v", err, errOwn)
	}
}
