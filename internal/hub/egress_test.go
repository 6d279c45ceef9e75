package hub

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/internal/hub/lifecycle"
	"github.com/cove-sandbox/cove/internal/telemetry/metric"
)

// socket is the address of a sandbox's egress proxy.
func (r *rig) socket(name string) string {
	r.t.Helper()
	found, err := filepath.Glob(filepath.Join(r.provider.dir, r.sandbox(name).ID+"*"))
	if err != nil || len(found) == 0 {
		r.t.Fatalf("got no socket, %v, want at least 1", err)
	}
	return found[len(found)-1]
}

// ask sends a request through the egress proxy of a sandbox.
func (r *rig) ask(name, url string) (int, error) {
	c, err := net.Dial("unix", r.socket(name))
	if err != nil {
		return 0, err
	}
	defer c.Close()
	fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", url)
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return 0, err
	}
	res.Body.Close()
	return res.StatusCode, nil
}

func TestNetworkPolicyIsChangedLive(t *testing.T) {
	t.Parallel()
	out := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(out.Close)
	s := setup{hub: Config{Private: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}}
	r := newRig(t, s)
	r.create(`{"name":"a"}`)
	want := func(status int) {
		t.Helper()
		if got, err := r.ask("a", out.URL); got != status || err != nil {
			t.Errorf("got %d, want %d: %v", got, status, err)
		}
	}
	want(200)
	if o := r.object(r.do("PUT", "/api/v1/sandbox/a/network", `{"mode":"none"}`)); o.Network.Mode != "none" {
		t.Errorf(`got %+v, want mode "none"`, o.Network)
	}
	want(403)
	r.do("PUT", "/api/v1/sandbox/a/network", `{"allow":["127.0.0.1"]}`)
	want(200)
	if a := r.do("PUT", "/api/v1/sandbox/a/network", `{"mode":"allow","allow":["not a name"]}`); a.Status != 400 {
		t.Errorf("got %d %s, want 400", a.Status, a.Body)
	}
	want(200)
	var n lifecycle.NetworkOut
	if a := r.do("GET", "/api/v1/sandbox/a/network", ""); json.Unmarshal(a.Data, &n) != nil || n.Mode != "allow" ||
		len(n.Connections) != 4 || n.Connections[1].Verdict != "denied" || n.Connections[0].Host != "127.0.0.1" {
		t.Errorf(`got %s, want mode "allow" and 4 connections, the first to 127.0.0.1, the second denied`, a.Body)
	}
	// The next hub serves the egress proxy with unchanged rules.
	r.do("PUT", "/api/v1/sandbox/a/network", `{"mode":"none"}`)
	r.close()
	if _, err := r.dialEgress(); err == nil {
		t.Error("the egress proxy is open after its hub ended")
	}
	r.open(s)
	poll(t, "the egress proxy is open again", func() bool { return r.provider.opened() == 1 })
	want(403)
	r.do("DELETE", "/api/v1/sandbox/a", "")
	if left, _ := filepath.Glob(filepath.Join(r.provider.dir, "*")); len(left) != 0 {
		t.Errorf("left: got %v, want none", left)
	}
}

func (r *rig) dialEgress() (net.Conn, error) {
	found, _ := filepath.Glob(filepath.Join(r.provider.dir, "*"))
	if len(found) == 0 {
		return nil, os.ErrNotExist
	}
	var d net.Dialer
	return d.DialContext(context.Background(), "unix", found[0])
}

// TestHubIsKilled: sandboxes keep running, and the next hub adopts them unchanged.
func TestHubIsKilled(t *testing.T) {
	t.Parallel()
	r := newRig(t, setup{})
	for _, name := range []string{"a", "b", "c"} {
		r.create(`{"name":"` + name + `"}`)
	}
	was := r.object(r.do("GET", "/api/v1/sandbox/a", ""))
	r.do("POST", "/api/v1/sandbox/b/pause", "")
	r.do("POST", "/api/v1/sandbox/c/stop", "")
	r.server.CloseClientConnections()
	r.server.Close()
	r.provider.Abandon()
	r.hub.Close()
	r.open(setup{})
	for name, want := range map[string]string{"a": "running", "b": "paused", "c": "stopped"} {
		if s := r.status(name); s != want {
			t.Errorf("%s: got %s, want %q", name, s, want)
		}
		if s := r.seen("GET", "/sandbox/"+name+"/x", ""); s.URI != "/x" {
			t.Errorf(`got %+v, want URI "/x"`, s)
		}
	}
	if o := r.object(r.do("GET", "/api/v1/sandbox/a", "")); o.ID != was.ID || !o.CreatedAt.Equal(was.CreatedAt) ||
		!o.ExpiresAt.Equal(*was.ExpiresAt) {
		t.Errorf("got %+v, want ID, creation time and expiry of %+v", o, was)
	}
	if a := r.do("GET", "/api/v1/sandbox", ""); strings.Count(a.Body, `"id"`) != 3 {
		t.Errorf(`got %v, want body that contains "id" 3 times`, a.Body)
	}
}

// TestEgressProxyIsReopened: a listener that fails is reopened.
func TestEgressProxyIsReopened(t *testing.T) {
	t.Parallel()
	r := newRig(t, setup{})
	r.create(`{"name":"a"}`)
	poll(t, "there is a way out", func() bool { return r.provider.opened() == 1 })
	r.provider.mu.Lock()
	r.provider.egress[0].Close()
	r.provider.mu.Unlock()
	poll(t, "there is another", func() bool { return r.provider.opened() == 2 })
	if status, err := r.ask("a", "http://127.0.0.1/"); status != 403 {
		t.Errorf("got %v %v, want status 403", status, err)
	}
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	m := metric.New()
	r := newRig(t, setup{hub: Config{Metrics: m}})
	r.create(`{"name":"a"}`)
	r.do("POST", "/api/v1/sandbox", `{"environment":"nowhere"}`)
	r.do("POST", "/api/v1/sandbox/a/pause", "")
	r.do("GET", "/sandbox/a/x", "")
	r.do("POST", "/api/v1/sandbox/a/pause", "")
	var b strings.Builder
	m.WriteTo(&b)
	for _, want := range []string{`cove_creates_total{result="created"} 1`, `cove_creates_total{result="refused"} 1`,
		`cove_wakes_total{result="woken"} 1`, `cove_sandboxes{state="paused"} 1`, `cove_sandboxes{state="running"} 0`,
		`cove_create_seconds_count 1`} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%s is missing in\n%s", want, b.String())
		}
	}
}
