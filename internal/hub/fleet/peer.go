package fleet

import (
	"context"
	"net"

	"github.com/cove-sandbox/cove/internal/sandbox"
)

// Seen returns the last observed state of a sandbox; false if it is unknown.
func (f *Fleet) Seen(id string) (sandbox.Sandbox, bool) {
	b := f.known(id)
	if b == nil {
		return sandbox.Sandbox{}, false
	}
	return b.seen(), true
}

// Named finds a sandbox of an owner for the hub itself, which no caller has asked.
func Named(ctx context.Context, f *Fleet, owner, name string) (sandbox.Sandbox, error) {
	return f.directory.findOwned(ctx, key{owner, name})
}

// Connect connects to a port of a sandbox that is entered.
func Connect(ctx context.Context, f *Fleet, b *Box, port int) (net.Conn, error) {
	return f.dial(ctx, b, port)
}
