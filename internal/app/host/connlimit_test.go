//go:build linux

package host

import (
	"log/slog"
	"net"
	"net/http"
	"testing"
)

// addressed is a connection from an address.
type addressed struct {
	net.Conn
	from   net.Addr
	closed bool
}

func (a *addressed) RemoteAddr() net.Addr { return a.from }
func (a *addressed) Close() error         { a.closed = true; return nil }

// One network can use at most half of the connections, and closed connections are available again.
// Clients of a Unix socket are not counted.
func TestConnLimit(t *testing.T) {
	t.Parallel()
	limit := newConnLimit(slog.New(slog.DiscardHandler))
	limit.limit = 4
	enter := func(from string) *addressed {
		t.Helper()
		c := &addressed{from: &net.UnixAddr{Net: "unix", Name: "@"}}
		if from != "" {
			c.from = &net.TCPAddr{IP: net.ParseIP(from), Port: 1}
		}
		limit.note(c, http.StateNew)
		return c
	}
	first, second := enter("2001:db8::1"), enter("2001:db8::2")
	for _, c := range []struct {
		from   string
		closed bool
	}{{"2001:db8::3", true}, {"2001:db8:0:1::1", false}, {"10.0.0.1", false}, {"10.0.0.2", true}, {"", false}} {
		if got := enter(c.from); got.closed != c.closed {
			t.Errorf("%q: got closed %v, want %v", c.from, got.closed, c.closed)
		}
	}
	limit.note(first, http.StateClosed)
	limit.note(second, http.StateHijacked)
	if got := enter("2001:db8::3"); got.closed {
		t.Error("after others were closed: got a closed connection, want an open one")
	}
	limit.note(second, http.StateClosed) // already removed
	if len(limit.conns) != 3 {
		t.Errorf("got %d connections, want 3", len(limit.conns))
	}
}
