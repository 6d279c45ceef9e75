package egress

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/network/outbound"
	"github.com/cove-sandbox/cove/internal/network/socks"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// TestPeers: programs reach a peer over every protocol, regardless of the rules, and never with a credential. Connections survive
// a change of the rules. A name that no longer stands for a peer is an ordinary name.
func TestPeers(t *testing.T) {
	t.Parallel()
	var seen atomic.Pointer[http.Request]
	peer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen.Store(r)
		io.WriteString(w, "the peer")
	}))
	t.Cleanup(peer.Close)
	at := peer.Listener.Addr().String()
	var gone atomic.Bool
	member := func(_ context.Context, name string) (Peer, bool) {
		if name != "db" && name != "named.test" || gone.Load() {
			return Peer{}, false
		}
		return Peer{Rule: "network team", Dial: func(ctx context.Context, port int) (net.Conn, error) {
			if port == 8080 {
				return nil, deny("port 8080 of %s is reserved", name)
			}
			var d net.Dialer
			return d.DialContext(ctx, "tcp", at)
		}}, true
	}
	w := newWorld(t, func(c *Config) {
		c.Network = sandbox.Network{Mode: sandbox.NetworkAllow, Allow: []string{"!db", "GET named.test/nothing"}}
		c.Peer = member
	})
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: path})
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() { defer close(served); w.Serve(handed{l}) }()
	t.Cleanup(func() { w.Close(); <-served })

	tryPeerByProxy(t, w, &seen)
	hub := &outbound.Hub{Path: path}
	if err := hub.Lookup(t.Context(), "db"); err != nil {
		t.Errorf("look up db: %v", err)
	}
	conn := w.request(t, hub, "db:5432")
	if err := conn.Admission(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := conn.Result(t.Context()); err != nil {
		t.Fatal(err)
	}
	inside, outer := program(t)
	give(t, conn, outer)
	if err := w.Set(sandbox.Network{Mode: sandbox.NetworkNone}); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(inside, "GET / HTTP/1.0\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(inside); err != nil || !strings.HasSuffix(string(b), "the peer") {
		t.Errorf("after a change of the rules: got %q, %v, want the peer", b, err)
	}
	gone.Store(true)
	if got := code(hub.Lookup(t.Context(), "db")); got != socks.Denied {
		t.Errorf("after the end: got %v, want %v", got, socks.Denied)
	}
	if status, text, _ := get(t, w.client(t, "http"), "http://db:5432/"); status != 403 {
		t.Errorf("after the end: got %d %q, want a refusal", status, text)
	}
	for _, rec := range w.Records() {
		if rec.Verdict == Allowed && (!rec.Private || rec.Rule != "network team") {
			t.Errorf("got record %+v, want it marked as private", rec)
		}
	}
}

// tryPeerByProxy connects to peers as programs that use the proxy do.
func tryPeerByProxy(t *testing.T, w *world, seen *atomic.Pointer[http.Request]) {
	t.Helper()
	w.Learner.Start(time.Minute, false, func() {})
	for _, scheme := range []string{"http", "socks5h"} {
		for _, url := range []string{"http://db:5432/", "http://DB.:5432/", "http://named.test:" + w.plain + "/x"} {
			status, text, err := get(t, w.client(t, scheme), url)
			if err != nil || status != 200 || text != "the peer" {
				t.Errorf("%s over %s: got %d %q, %v, want the peer", url, scheme, status, text, err)
			}
			if h := seen.Load().Header; strings.Contains(h.Get("Authorization"), token) {
				t.Errorf("%s over %s: the peer received a credential of the host", url, scheme)
			}
		}
	}
	if status, text, _ := get(t, w.client(t, "http"), "http://db:8080/"); status != 403 || !strings.Contains(text, "is reserved") {
		t.Errorf("got %d %q, want a refusal", status, text)
	}
	if uses := w.Learner.Read().Uses; len(uses) > 0 {
		t.Errorf("got %v, want no peer in the recording", uses)
	}
}

// TestPeerIsNoOtherHost: a request that is decided for a public host never uses a connection to a peer of the same name, and
// the other way around.
func TestPeerIsNoOtherHost(t *testing.T) {
	t.Parallel()
	peer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "peer") }))
	t.Cleanup(peer.Close)
	var on atomic.Bool
	w := newWorld(t, func(c *Config) {
		c.Peer = func(_ context.Context, name string) (Peer, bool) {
			return Peer{Dial: func(ctx context.Context, _ int) (net.Conn, error) {
				var d net.Dialer
				return d.DialContext(ctx, "tcp", peer.Listener.Addr().String())
			}}, on.Load() && name == "named.test"
		}
	})
	c := w.client(t, "http")
	for i := range 6 {
		on.Store(i%2 == 0)
		want := map[bool]string{true: "peer", false: "fine"}[i%2 == 0]
		if _, text, err := get(t, c, "http://named.test:"+w.plain+"/"); err != nil || text != want {
			t.Errorf("request %d: got %q, %v, want %q", i, text, err, want)
		}
	}
	if got := len(w.requests()); got != 3 {
		t.Errorf("the host received %d requests, want 3", got)
	}
	for _, r := range w.requests() {
		if len(r.auth) != 1 {
			t.Errorf("the host received credentials %q, want 1", r.auth)
		}
	}
}
