package cluster_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/client"
	"github.com/cove-sandbox/cove/internal/testenv"
	"github.com/cove-sandbox/cove/test/cluster"
)

// hub is the real program on a private engine.
type hub struct {
	*client.Client
	t   *testing.T
	cmd *exec.Cmd
}

func startHub(t *testing.T, e *cluster.Engine, state string) *hub {
	t.Helper()
	socket := filepath.Join(state, "listen.sock")
	h := &hub{t: t, cmd: exec.Command(filepath.Join(programs, "cove"), "hub", "--provider", "docker", "--docker-host", "unix://"+e.Socket,
		"--default-image", slimImage, "--state", state, "--listen", "unix:"+socket, "--pool", "1", "--log-level", "error")}
	h.cmd.Stderr = os.Stderr
	if err := h.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var err error
	if h.Client, err = client.New(client.Config{URL: "unix:" + socket}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Close)
	t.Cleanup(h.kill)
	testenv.Poll(t, "the hub answers", func() bool { _, err := h.Info(t.Context()); return err == nil })
	return h
}

// kill ends the hub as by kill -9.
func (h *hub) kill() {
	h.cmd.Process.Kill()
	h.cmd.Wait()
}

func (h *hub) wantOutput(name, command, want string) {
	h.t.Helper()
	var out, errs bytes.Buffer
	g := h.Guest(name)
	defer g.Close()
	if _, err := g.Exec(h.t.Context(), command, client.ExecOptions{Stdout: &out, Stderr: &errs}); err != nil || out.String() != want {
		h.t.Errorf("%s in %s: got %q, %q, %v, want %q", command, name, &out, &errs, err, want)
	}
}

// testHub: the hub's own API works on an engine as on this machine, also after kill -9.
func testHub(t *testing.T, e *cluster.Engine) {
	state, err := os.MkdirTemp("", "cove-hub-") // short: it holds sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, id := range strings.Fields(e.Run(t, nil, "ps", "-aq", "--filter", "label=io.cove.hub")) {
			e.Run(t, nil, "rm", "-f", id)
		}
		os.RemoveAll(state)
	})
	h := startHub(t, e, state)
	info, err := h.Info(t.Context())
	if err != nil || !bytes.Contains(info.Abilities, []byte(`"provider":"docker"`)) {
		t.Fatalf("got %+v, %v, want the provider docker", info, err)
	}
	must := func(_ *client.Sandbox, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	// One is taken from the pool and bound late, if it is ready by now; the other is not.
	must(h.Create(t.Context(), client.CreateOptions{Name: "a", Env: map[string]string{"GREETING": "hello"}, Network: &client.Network{Mode: "none"}}))
	must(h.Create(t.Context(), client.CreateOptions{Name: "b", MemoryLimit: "256Mi"}))
	h.wantOutput("a", "echo $GREETING; id -un; sudo -n id -u", "hello\ngem\n0\n")
	h.wantOutput("a", "curl -s -o /dev/null -w '%{http_code}' http://192.0.2.1/", "403")
	h.wantOutput("b", "ls /sys/class/net; echo kept >file", "lo\n")
	must(h.Pause(t.Context(), "b"))
	h.wantOutput("b", "cat file", "kept\n") // a request wakes it
	if _, err := h.Snapshot(t.Context(), "b", "good"); err != nil {
		t.Fatal(err)
	}
	h.wantOutput("b", "rm file", "")
	must(h.Rollback(t.Context(), "b", "good"))
	h.wantOutput("b", "cat file", "kept\n")
	h.kill()
	h = startHub(t, e, state)
	h.wantOutput("a", "echo $GREETING", "hello\n")
	h.wantOutput("b", "cat file", "kept\n")
	for _, name := range []string{"a", "b"} {
		if err := h.Delete(t.Context(), name); err != nil {
			t.Error(err)
		}
	}
	if err := h.DeleteSnapshot(t.Context(), "good"); err != nil {
		t.Error(err)
	}
}
