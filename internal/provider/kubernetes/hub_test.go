//go:build linux

package kubernetes_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/client"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// realHub is the real program on a cluster.
type realHub struct {
	*client.Client
	t      *testing.T
	cmd    *exec.Cmd
	socket string
}

func startHub(t *testing.T, s *apiServer, bin, state string, flags ...string) *realHub {
	t.Helper()
	h := launchHub(t, s, bin, state, "listen.sock", flags...)
	h.connect("")
	return h
}

// launchHub starts a hub that serves a socket in its state folder.
func launchHub(t *testing.T, s *apiServer, bin, state, socket string, flags ...string) *realHub {
	t.Helper()
	text := fmt.Sprintf("current-context: test\ncontexts:\n- {name: test, context: {cluster: test, user: test, "+
		"namespace: %s}}\nclusters:\n- {name: test, cluster: {server: \"http://%s\"}}\nusers:\n- {name: test, "+
		"user: {token: %s}}\n", namespace, s.address, token)
	return runHub(t, bin, state, socket, text,
		append([]string{"--default-image", tinyImage, "--kubernetes-programs-image", programsImage, "--pool", "1"}, flags...)...)
}

// runHub starts a hub on the cluster of a kubeconfig file.
func runHub(t *testing.T, bin, state, socket, kubeconfig string, flags ...string) *realHub {
	t.Helper()
	config := filepath.Join(state, "kubeconfig")
	if err := os.WriteFile(config, []byte(kubeconfig), 0o600); err != nil {
		t.Fatal(err)
	}
	// As within the cluster, but with the sign-in of a kubeconfig file.
	h := &realHub{t: t, socket: filepath.Join(state, socket)}
	h.cmd = exec.Command(filepath.Join(bin, "cove"),
		append([]string{"hub", "--provider", "kubernetes", "--kubernetes-config", config, "--kubernetes-reach", "pod",
			"--state", state, "--listen", "unix:" + h.socket, "--log-level", "error"}, flags...)...)
	h.cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + state}
	h.cmd.Stderr = os.Stderr
	if err := h.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.kill)
	return h
}

// connect waits until the hub answers.
func (h *realHub) connect(key string) {
	h.t.Helper()
	var err error
	if h.Client, err = client.New(client.Config{URL: "unix:" + h.socket, Key: key}); err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(h.Close)
	testenv.Poll(h.t, "the hub answers", func() bool { _, err := h.Info(h.t.Context()); return err == nil })
}

// kill ends the hub as by kill -9.
func (h *realHub) kill() {
	h.cmd.Process.Kill()
	h.cmd.Wait()
}

// metrics returns the metrics of the hub.
func (h *realHub) metrics() string { return metricsOf(h.t, h.socket) }

func metricsOf(t testing.TB, socket string) string {
	t.Helper()
	tr := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}
	resp, err := (&http.Client{Transport: tr}).Get("http://hub/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	out, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

func (h *realHub) wantOutput(name, command, want string) {
	h.t.Helper()
	var out, errs bytes.Buffer
	g := h.Guest(name)
	defer g.Close()
	if _, err := g.Exec(h.t.Context(), command, client.ExecOptions{Stdout: &out, Stderr: &errs}); err != nil || out.String() != want {
		h.t.Errorf("%s in %s: got %q, %q, %v, want %q", command, name, &out, &errs, err, want)
	}
}

// testHub: the hub's own API works on a cluster as on this machine, with the real server inside,
// also after kill -9.
func testHub(t *testing.T) {
	testenv.Need(t, "curl")
	bin := t.TempDir()
	testenv.Build(t, map[string]string{bin + "/cove": "../../../cmd/cove", bin + "/aio": "../../../cmd/aio"})
	t.Run("archives", func(t *testing.T) {
		kept := startStore(t)
		testHubWith(t, bin, func(*apiServer) []string { return kept.objects() }, "--kubernetes-snapshot-endpoint",
			kept.Endpoint, "--kubernetes-snapshot-bucket", kept.Bucket, "--kubernetes-snapshot-access-key",
			kept.AccessKey, "--kubernetes-snapshot-secret-key", kept.SecretKey)
	})
	t.Run("cuts", func(t *testing.T) {
		testHubWith(t, bin, func(s *apiServer) []string { return s.of("cove", "volumesnapshots") },
			"--kubernetes-disk", "persistent", "--kubernetes-snapshot-class", "homes")
	})
}

// testHubWith tests a hub with settings for snapshots; kept lists the stored ones.
func testHubWith(t *testing.T, bin string, kept func(*apiServer) []string, flags ...string) {
	s := newAPIServer(t, map[string]string{"aio": bin + "/aio", "cove-container": programs["cove-container"]})
	s.kubelet.installer(t)
	state, err := os.MkdirTemp("", "cove-hub-") // short: it holds sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(state) })
	h := startHub(t, s, bin, state, flags...)
	info, err := h.Info(t.Context())
	if err != nil || !bytes.Contains(info.Abilities, []byte(`"provider":"kubernetes"`)) {
		t.Fatalf("got %+v, %v, want the provider kubernetes", info, err)
	}
	testenv.Poll(t, "a warm sandbox is ready", func() bool { return strings.Contains(h.metrics(), `cove_pool_ready{environment="aio"} 1`) })
	warm := s.of("cove", "pods")
	// One is taken from the pool and bound late, the other is not.
	if _, err := h.Create(t.Context(), client.CreateOptions{Name: "a", Env: map[string]string{"GREETING": "hello"},
		Network: &client.Network{Mode: "none"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Create(t.Context(), client.CreateOptions{Name: "b", MemoryLimit: "256Mi"}); err != nil {
		t.Fatal(err)
	}
	claimed, err := s.get("pods", strings.TrimPrefix(warm[0], "pods/"))
	if err != nil {
		t.Fatal(err)
	}
	testenv.Poll(t, "the warm Pod has its new name", func() bool {
		claimed, err = s.get("pods", metaOf(claimed)["name"].(string))
		return err == nil && metaOf(claimed)["annotations"].(doc)["io.cove.name"] == "a"
	})
	h.wantOutput("a", "echo $GREETING; id -u", "hello\n1000\n")
	h.wantOutput("a", "curl -s -o /dev/null -w '%{http_code}' http://192.0.2.1/", "403") // the hub's proxy refuses
	h.wantOutput("b", "echo kept >file; cat file", "kept\n")
	if snap, err := h.Snapshot(t.Context(), "b", "good"); err != nil || snap.Size <= 0 || snap.Name != "good" {
		t.Fatalf("got %+v, %v, want a snapshot", snap, err)
	}
	h.kill()
	h = startHub(t, s, bin, state, flags...)
	h.wantOutput("a", "echo $GREETING", "hello\n")
	h.wantOutput("b", "cat file; echo changed >file", "kept\n")
	// Earlier snapshots remain available: for new sandboxes next to warm ones, for forks and for the sandbox itself.
	if _, err := h.Create(t.Context(), client.CreateOptions{Name: "c", Snapshot: "good"}); err != nil {
		t.Fatal(err)
	}
	h.wantOutput("c", "cat file; echo forked >file", "kept\n")
	if _, err := h.Fork(t.Context(), "c", 1, "d"); err != nil {
		t.Fatal(err)
	}
	h.wantOutput("d", "cat file", "forked\n")
	if _, err := h.Rollback(t.Context(), "b", "good"); err != nil {
		t.Fatal(err)
	}
	h.wantOutput("b", "cat file", "kept\n")
	if list, err := h.Snapshots(t.Context()); err != nil || len(list) != 1 || list[0].Name != "good" {
		t.Errorf("got %+v, %v, want one snapshot", list, err)
	}
	if err := h.DeleteSnapshot(t.Context(), "good"); err != nil {
		t.Error(err)
	}
	if left := kept(s); len(left) != 0 {
		t.Errorf("%q are left of snapshots", left)
	}
	for _, name := range []string{"a", "b", "c", "d"} {
		if err := h.Delete(t.Context(), name); err != nil {
			t.Error(err)
		}
	}
}
