package docker_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/provider/docker"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// afterOutage: sandboxes that the engine ended can be restarted with their disk; those that survived continue to run.
func (h *hub) afterOutage(outage func(testing.TB)) {
	h.t.Helper()
	running, stopped := h.create(sandbox.Spec{Name: "running"}), h.create(sandbox.Spec{Name: "stopped"})
	h.sh(running.ID, "echo kept >file; echo kept >/dev/shm/memory")
	if err := h.Stop(h.t.Context(), stopped.ID); err != nil {
		h.t.Fatal(err)
	}
	outage(h.t)
	if h.r.outlived {
		h.wantOutput(running.ID, map[string]string{"cat /dev/shm/memory": "kept\n"})
	} else {
		testenv.Poll(h.t, "the hub detects what the engine did", func() bool {
			sb, err := h.Get(h.t.Context(), running.ID)
			return err == nil && sb.State == sandbox.Failed && sb.Message != ""
		})
	}
	for _, sb := range []sandbox.Sandbox{running, stopped} {
		if err := h.Start(h.t.Context(), sb.ID); err != nil {
			h.t.Fatal(err)
		}
	}
	h.wantOutput(running.ID, map[string]string{"cat file": "kept\n"})
	// Events arrive again.
	h.request(running.ID, 0, "/exit/4", "")
	testenv.Poll(h.t, "the hub notices the end of a program", func() bool {
		sb, err := h.Get(h.t.Context(), running.ID)
		return err == nil && sb.State == sandbox.Failed && strings.Contains(sb.Message, "4")
	})
}

func testRestart(h *hub)      { h.afterOutage(h.r.Restart) }
func testEngineKilled(h *hub) { h.afterOutage(h.r.Kill) }

// testRemoved: if a container is removed externally, its sandbox is removed.
func testRemoved(h *hub) {
	sb, closed := h.create(sandbox.Spec{}), h.create(sandbox.Spec{})
	events, err := h.Watch(h.t.Context())
	if err != nil {
		h.t.Fatal(err)
	}
	h.r.Run(h.t, nil, "rm", "-f", "cove-"+sb.ID)
	for e := range events {
		if e.Kind == sandbox.Deleted && e.Sandbox.ID == sb.ID {
			break
		}
	}
	if _, err := h.Get(h.t.Context(), sb.ID); !errors.Is(err, sandbox.ErrNotFound) {
		h.t.Errorf("got %v, want %v", err, sandbox.ErrNotFound)
	}
	if err := h.Close(); err != nil {
		h.t.Fatal(err)
	}
	h.r.Run(h.t, nil, "rm", "-f", "cove-"+closed.ID)
	h.open()
	if all, err := h.List(h.t.Context(), sandbox.Filter{}); err != nil || len(all) != 0 {
		h.t.Errorf("got %v, %v, want none", all, err)
	}
}

// testLost: after a loss of the state folder, sandboxes are adopted by their labels.
func testLost(h *hub) {
	sb := h.create(sandbox.Spec{Name: "found", Owner: "ann", Labels: map[string]string{"a": "b"}})
	h.sh(sb.ID, "echo kept >file")
	if err := errors.Join(h.Close(), os.RemoveAll(filepath.Join(h.cfg.Dir, "containers"))); err != nil {
		h.t.Fatal(err)
	}
	h.open()
	got, err := h.Get(h.t.Context(), sb.ID)
	if err != nil || got.State != sandbox.Failed || got.Spec.Name != "found" || got.Spec.Owner != "ann" ||
		got.Spec.Labels["a"] != "b" || !got.Created.Equal(sb.Created) {
		h.t.Fatalf("got %+v, %v, want what was created, failed", got, err)
	}
	if err := h.Start(h.t.Context(), sb.ID); err != nil {
		h.t.Fatal(err)
	}
	h.wantOutput(sb.ID, map[string]string{"cat file": "kept\n"})
}

// testLate: a container that the engine creates for a killed hub is removed by the next hub, before or after its start. A
// container that has run is kept.
func testLate(h *hub) {
	h.createLate("late-running")
	h.awaitRemoved("late-running")
	if err := h.Close(); err != nil {
		h.t.Fatal(err)
	}
	h.createLate("late-closed")
	h.createLate("late-has-run")
	h.r.Run(h.t, nil, "start", "late-has-run")
	h.open()
	h.awaitRemoved("late-closed")
	if h.r.Run(h.t, nil, "rm", "-f", "late-has-run") != "late-has-run\n" {
		h.t.Error("a container that has run was removed")
	}
}

// createLate creates a container of a sandbox that is unknown to the hub.
func (h *hub) createLate(name string) {
	h.t.Helper()
	h.r.Run(h.t, nil, "create", "--network", "none", "--name", name, "--label", "io.cove.hub="+docker.Instance(h.cfg),
		"--label", "io.cove.id=sb-late", tinyImage, "/bin/sh", "-c", ":")
}

func (h *hub) awaitRemoved(name string) {
	h.t.Helper()
	testenv.Poll(h.t, name+" is removed", func() bool { return h.r.Run(h.t, nil, "ps", "-aq", "--filter", "name="+name) == "" })
}

// testLateSubscription: the hub receives events that happen between the response of the engine and the subscription.
func testLateSubscription(h *hub) {
	if err := h.Close(); err != nil {
		h.t.Fatal(err)
	}
	looked, subscribe := make(chan struct{}), make(chan struct{})
	var once sync.Once
	engine := &httputil.ReverseProxy{FlushInterval: -1, Rewrite: func(r *httputil.ProxyRequest) {
		r.Out.URL.Scheme, r.Out.URL.Host = "http", "engine"
	}, Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", h.r.Socket)
		},
	}}
	front := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/events") {
			w.WriteHeader(http.StatusOK)
			http.NewResponseController(w).Flush()
			select {
			case <-subscribe:
			case <-r.Context().Done():
			}
		}
		engine.ServeHTTP(w, r)
		if strings.Contains(r.URL.Query().Get("filters"), "created") { // the last property that it reads
			once.Do(func() { close(looked) })
		}
	}))
	path := filepath.Join(h.t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		h.t.Fatal(err)
	}
	front.Listener.Close()
	front.Listener = l
	front.Start()
	defer front.Close()
	defer front.CloseClientConnections()
	direct := h.cfg.Host
	h.cfg.Host = "unix://" + path
	h.open()
	<-looked
	h.createLate("late-subscription")
	close(subscribe)
	h.awaitRemoved("late-subscription")
	if err := h.Close(); err != nil {
		h.t.Fatal(err)
	}
	h.cfg.Host = direct
	h.open()
}
