package hub

import (
	"context"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/provider/local"
	"github.com/cove-sandbox/cove/internal/sandbox"
	"github.com/cove-sandbox/cove/internal/surface/rest"
)

// TestLocalProvider runs the hub on the local provider.
func TestLocalProvider(t *testing.T) {
	testenv.NeedRoot(t)
	testenv.Need(t, "go")
	r := newMachine(t)
	cfg := r.cfg
	r.start()
	defer r.clean()

	o := r.create(`{"name":"a","env":{"COLOUR":"blue"},"idle_policy":"pause"}`)
	if got := r.do("GET", "/sandbox/a/env/COLOUR", ""); got.Body != "blue" || len(o.Stages) < 3 {
		t.Errorf("%d %s %v", got.Status, got.Body, o.Stages)
	}
	if got := r.do("PUT", "/sandbox/a/disk/note", "kept"); got.Status != 200 {
		t.Errorf("got %d %s, want 200", got.Status, got.Body)
	}
	for _, verb := range []string{"pause", "stop"} {
		r.do("POST", "/api/v1/sandbox/a/"+verb, "")
		if got := r.do("GET", "/sandbox/a/disk/note", ""); got.Body != "kept" {
			t.Errorf("after %s: %d %s", verb, got.Status, got.Body)
		}
	}
	// The egress proxy rejects data that is not a request.
	way := func() {
		t.Helper()
		if got := r.do("GET", "/sandbox/a/egress", ""); !strings.Contains(got.Body, "400 Bad Request") {
			t.Errorf("%d %s", got.Status, got.Body)
		}
	}
	way()
	if got := r.do("GET", "/api/v1/sandbox/a/stats", ""); got.Status != 200 || !strings.Contains(got.Body, `"memory_bytes":`) {
		t.Errorf("got %d %s, want 200", got.Status, got.Body)
	}
	if got := r.do("GET", "/api/v1/sandbox/a/logs", ""); got.Status != 200 {
		t.Errorf("got %d %s, want 200", got.Status, got.Body)
	}
	r.stop()
	r.start()
	if now := r.object(r.do("GET", "/api/v1/sandbox/a", "")); now.ID != o.ID || now.Status != "running" || !now.ExpiresAt.Equal(*o.ExpiresAt) {
		t.Errorf("got %+v, want %s running with expiry %v", now, o.ID, o.ExpiresAt)
	}
	poll(t, "the egress proxy is open again", func() bool {
		return strings.Contains(r.do("GET", "/sandbox/a/egress", "").Body, "400 Bad Request")
	})
	way()
	if got := r.do("DELETE", "/api/v1/sandbox/a", ""); got.Status != 200 {
		t.Errorf("got %d %s, want 200", got.Status, got.Body)
	}
	if left, _ := filepath.Glob(filepath.Join(cfg.Dir, "disk", "*", "*")); len(left) != 0 {
		t.Errorf("left: got %v, want none", left)
	}
}

// machine is a rig on the local provider.
type machine struct {
	*rig
	cfg    local.Config
	stores func() stores // nil: none
	p      *local.Provider
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	dir := t.TempDir()
	hub, payload := filepath.Join(dir, "hub"), filepath.Join(dir, "payload")
	testenv.Build(t, map[string]string{hub: "../provider/local/testdata/hub", payload: "../provider/providertest/testdata/serve"})
	cfg := local.Config{Dir: filepath.Join(dir, "state"), Init: []string{hub, "isolate-init"}, Command: []string{"/run/payload"},
		Binds: []local.Bind{{Source: payload, Target: "/run/payload"}}, StopGrace: 2 * time.Second}
	return &machine{rig: &rig{t: t}, cfg: cfg}
}

// clean deletes all sandboxes and stops.
func (m *machine) clean() {
	m.closeHub() // it may still create sandboxes
	list, err := m.p.List(context.Background(), sandbox.Filter{})
	if err != nil {
		m.t.Error(err)
	}
	for _, sb := range list {
		if err := m.p.Delete(context.Background(), sb.ID); err != nil {
			m.t.Error(err)
		}
	}
	m.p.Close()
}

func (m *machine) start() {
	m.t.Helper()
	p, err := local.Open(m.t.Context(), m.cfg)
	if err != nil {
		m.t.Fatal(err)
	}
	c := rest.Config{Dialect: rest.Hub, Caller: func(_ context.Context, c *op.Call) { c.Role = "admin" }}
	var own stores
	if m.stores != nil { // then requests carry an identity
		own = m.stores()
		c.Caller, c.Guard = nil, asSubject
	}
	m.p, m.hub = p, build(Config{Provider: p}, own)
	m.hub.Begin(context.Background())
	c.Table, c.Front = op.NewTable(m.hub.Ops()), m.hub.Front
	if c.Caller == nil {
		c.Caller = m.hub.Caller
	}
	m.server = httptest.NewServer(rest.New(c))
	// The fleet has no box for the sandbox until it has adopted it.
	list, _ := p.List(m.t.Context(), sandbox.Filter{})
	poll(m.t, "all are taken up", func() bool {
		return !slices.ContainsFunc(list, func(sb sandbox.Sandbox) bool { return !m.hub.fleet.Knows(sb.ID) })
	})
}

func (m *machine) stop() {
	m.closeHub()
	m.p.Close()
}

func (m *machine) closeHub() {
	m.server.CloseClientConnections()
	m.server.Close()
	m.hub.Close()
}
