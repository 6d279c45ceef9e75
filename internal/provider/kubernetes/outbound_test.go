//go:build linux

package kubernetes_test

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes"
	"github.com/cove-sandbox/cove/internal/provider/providertest/outbound"
	"github.com/cove-sandbox/cove/internal/sandbox"
	"github.com/cove-sandbox/cove/test/cluster"
)

// testOutbound: programs that do not use a proxy reach what the policy allows, and nothing else, in a Pod with a route and the
// usual filter of system calls.
func testOutbound(t *testing.T) {
	own := maps.Clone(programs)
	own["probe"] = filepath.Join(t.TempDir(), "probe")
	outbound.Build(t, own["probe"])
	s := newAPIServer(t, own)
	s.kubelet.routed = true
	outbound.Run(t, func(t *testing.T) *outbound.Box {
		return boxOf(t, &hub{t: t, s: s, cfg: s.config(t), left: s.left}, own["probe"])
	})
}

// testRealOutbound: the same with the container runtime, the network and the profile of system calls of a node. Servers of the
// machine are reachable from Pods, because this cluster does not enforce NetworkPolicies.
func testRealOutbound(k *real) {
	bin := k.t.TempDir()
	testenv.Build(k.t, map[string]string{bin + "/cove-container": "../../../cmd/cove-container",
		bin + "/payload": "../providertest/testdata/serve"})
	outbound.Build(k.t, bin+"/probe")
	const image = "registry.test/outbound:1"
	k.Load(k.t, "registry.test/minimal:1", map[string]string{"/bin/sh": "/bin/busybox"})
	k.Load(k.t, image, map[string]string{programsDir + "/cove-container": bin + "/cove-container",
		programsDir + "/payload": bin + "/payload", programsDir + "/probe": bin + "/probe"})
	newHub := func(t *testing.T) *hub {
		k := &real{k.Kubernetes, t, realNamespace}
		h := &hub{t: t, cfg: k.config(), left: k.left}
		h.cfg.Programs, h.cfg.Image, h.cfg.RuntimeClasses = image, "registry.test/minimal:1", []string{cluster.GVisor}
		return h
	}
	outbound.RunMinimal(k.t, func(t *testing.T) *outbound.Box { return boxOf(t, newHub(t), bin+"/probe") })
	k.t.Run("walls", func(t *testing.T) { testOutboundWalls(t, newHub(t)) })
}

// testOutboundWalls: a Pod has a route to this machine. Programs in a plain Pod cannot use it; gVisor has no notifications, so the
// sandbox works, but only a NetworkPolicy, which this cluster does not enforce, keeps programs from the route.
func testOutboundWalls(t *testing.T, h *hub) {
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "machine") }))
	server.Listener.Close()
	server.Listener = l
	server.Start()
	t.Cleanup(server.Close)
	address := ""
	list, _ := net.InterfaceAddrs()
	for _, a := range list {
		if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil && !n.IP.IsLoopback() {
			address = fmt.Sprintf("%s:%d", n.IP, l.Addr().(*net.TCPAddr).Port)
		}
	}
	h.open()
	t.Cleanup(h.clean)
	for isolation, want := range map[string]string{"": "connection refused", cluster.GVisor: "machine"} {
		id := h.create(sandbox.Spec{Isolation: isolation}).ID
		outbound.Serve(t, &outbound.Box{Listen: func(ctx context.Context) (net.Listener, error) { return h.Egress(ctx, id) }}, "*.ok.test")
		if out, err := h.long(id, "/run/bin/probe get http://"+address+" 2>&1"); err != nil || !strings.Contains(out, want) {
			t.Errorf("isolation %q: got %q, %v, want %q", isolation, out, err, want)
		}
	}
}

// boxOf returns a sandbox of a hub that is not open yet.
func boxOf(t *testing.T, h *hub, probe string) *outbound.Box {
	t.Helper()
	h.open()
	t.Cleanup(h.clean)
	id := h.create(sandbox.Spec{}).ID
	var neighbour string
	return &outbound.Box{
		Probe: "/run/bin/probe", Outside: outside(probe), Unsandboxed: true,
		Shell: func(command string) (string, error) { return h.long(id, command) },
		Neighbour: func(command string) (string, error) {
			if neighbour == "" {
				neighbour = h.create(sandbox.Spec{}).ID
			}
			return h.long(neighbour, command)
		},
		Listen: func(ctx context.Context) (net.Listener, error) { return h.Egress(ctx, id) },
		Reopen: func() (err error) {
			err = h.Close()
			h.Provider = nil
			if err == nil {
				h.Provider, err = kubernetes.Open(context.Background(), h.cfg)
			}
			return err
		},
	}
}

// long runs a command that may take minutes.
func (h *hub) long(id, command string) (string, error) {
	ep, err := h.Endpoint(h.t.Context(), id, 0)
	if err != nil {
		return "", err
	}
	return outbound.Request(h.t.Context(), ep.Dial, command)
}

// outside runs a program on this machine.
func outside(program string) func(args ...string) (string, error) {
	return func(args ...string) (string, error) {
		out, err := exec.Command(program, args...).CombinedOutput()
		return string(out), err
	}
}
