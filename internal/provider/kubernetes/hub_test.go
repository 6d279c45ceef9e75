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
	"github.com/cove-sandbox/cove/internal/testenv"
)

// realHub is the real program on a cluster.
type realHub struct {
	*client.Client
	t      *testing.T
	cmd    *exec.Cmd
	socket string
}

func startHub(t *testing.T, s *apiServer, bin, state string) *realHub {
	t.Helper()
	config := filepath.Join(state, "kubeconfig")
	text := fmt.Sprintf("current-context: test\ncontexts:\n- {name: test, context: {cluster: test, user: test, namespace: %s}}\nclusters:\n- {name: test, cluster: {server: \"http://%s\"}}\nusers:\n- {name: test, user: {token: %s}}\n", namespace, s.address, token)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	// As within the cluster, but with the sign-in of a kubeconfig file.
	socket := filepath.Join(state, "listen.sock")
	h := &realHub{t: t, socket: socket, cmd: exec.Command(filepath.Join(bin, "cove"), "hub", "--provider", "kubernetes", "--kubernetes-config", config, "--kubernetes-reach", "pod",
		"--default-image", tinyImage, "--kubernetes-programs-image", programsImage, "--state", state, "--listen", "unix:"+socket, "--pool", "1", "--log-level", "error")}
	h.cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + state}
	h.cmd.Stderr = os.Stderr
	if err := h.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.kill)
	var err error
	if h.Client, err = client.New(client.Config{URL: "unix:" + socket}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Close)
	testenv.Poll(t, "the hub answers", func() bool { _, err := h.Info(t.Context()); return err == nil })
	return h
}

// kill ends the hub as by kill -9.
func (h *realHub) kill() {
	h.cmd.Process.Kill()
	h.cmd.Wait()
}

// metrics returns what the hub says about itself.
func (h *realHub) metrics() string {
	tr := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", h.socket)
	}}
	resp, err := (&http.Client{Transport: tr}).Get("http://hub/metrics")
	if err != nil {
		h.t.Fatal(err)
	}
	defer resp.Body.Close()
	out, err := io.ReadAll(resp.Body)
	if err != nil {
		h.t.Fatal(err)
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
	s := newAPIServer(t, map[string]string{"aio": bin + "/aio", "cove-container": programs["cove-container"]})
	s.kubelet.installer(t)
	state, err := os.MkdirTemp("", "cove-hub-") // short: it holds sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(state) })
	h := startHub(t, s, bin, state)
	info, err := h.Info(t.Context())
	if err != nil || !bytes.Contains(info.Abilities, []byte(`"provider":"kubernetes"`)) {
		t.Fatalf("got %+v, %v, want the provider kubernetes", info, err)
	}
	testenv.Poll(t, "a warm sandbox is ready", func() bool { return strings.Contains(h.metrics(), `cove_pool_ready{environment="aio"} 1`) })
	warm := s.of("cove", "pods")
	// One is taken from the pool and bound late, the other is not.
	if _, err := h.Create(t.Context(), client.CreateOptions{Name: "a", Env: map[string]string{"GREETING": "hello"}, Network: &client.Network{Mode: "none"}}); err != nil {
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
	h.kill()
	h = startHub(t, s, bin, state)
	h.wantOutput("a", "echo $GREETING", "hello\n")
	h.wantOutput("b", "cat file", "kept\n")
	for _, name := range []string{"a", "b"} {
		if err := h.Delete(t.Context(), name); err != nil {
			t.Error(err)
		}
	}
}
