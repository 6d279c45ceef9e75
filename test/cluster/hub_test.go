package cluster_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cove-sandbox/cove/client"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/test/cluster"
)

// hub is the real program with a private engine or cluster.
type hub struct {
	*client.Client
	t      *testing.T
	socket string
	cmd    *exec.Cmd
}

func startHub(t *testing.T, e *cluster.Engine, state string, more ...string) *hub {
	t.Helper()
	return launchHub(t, state, append([]string{"--provider", "docker", "--docker-host", "unix://" + e.Socket, "--pool", "1"}, more...)...)
}

// launchHub starts a hub with any provider and waits until it answers.
func launchHub(t *testing.T, state string, more ...string) *hub {
	t.Helper()
	socket := filepath.Join(state, "listen.sock")
	args := append([]string{"hub", "--default-image", cluster.SlimImage, "--state", state, "--listen",
		"unix:" + socket, "--log-level", "error"}, more...)
	h := &hub{t: t, socket: socket, cmd: exec.Command(filepath.Join(programs, "cove"), args...)}
	h.cmd.Stderr = os.Stderr
	if err := h.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	cfg := client.Config{URL: "unix:" + socket}
	if slices.Contains(more, "--tenants") {
		testenv.Poll(t, "the operator's key", func() bool {
			key, _ := os.ReadFile(filepath.Join(state, "admin.key"))
			cfg.Key = strings.TrimSpace(string(key))
			return cfg.Key != ""
		})
	}
	var err error
	if h.Client, err = client.New(cfg); err != nil {
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

// testHub: the API of the hub works on an engine, also after kill -9.
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
	h := startHub(t, e, state, "--tenants")
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
	// One comes from the warm pool, if it is ready; the other does not.
	must(h.Create(t.Context(), client.CreateOptions{Name: "a", Env: map[string]string{"GREETING": "hello"},
		Network: &client.Network{Mode: "none"}}))
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
	h = startHub(t, e, state, "--tenants")
	h.wantOutput("a", "echo $GREETING", "hello\n")
	h.wantOutput("b", "cat file", "kept\n")
	t.Run("escape", func(t *testing.T) { testEscape(t, e, h) })
	t.Run("sockets", func(t *testing.T) { testSockets(t, h) })
	t.Run("sign-in", func(t *testing.T) { testSignIn(t, h, "b") })
	for _, name := range []string{"a", "b"} {
		if err := h.Delete(t.Context(), name); err != nil {
			t.Error(err)
		}
	}
	if err := h.DeleteSnapshot(t.Context(), "good"); err != nil {
		t.Error(err)
	}
}

// testKilledHub: after kill -9 during 50 creates, the next hub has every sandbox whose creation was confirmed, all listed
// sandboxes work, and the engine has no other containers.
func testKilledHub(t *testing.T, e *cluster.Engine) {
	state, err := os.MkdirTemp("", "cove-hub-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(state) })
	const all, some = 50, 5
	h := startHub(t, e, state, "--pool", "0")
	promised := make(chan string, all)
	var wg sync.WaitGroup
	for i := range all {
		wg.Go(func() {
			name := fmt.Sprintf("burst-%d", i)
			if _, err := h.Create(t.Context(), client.CreateOptions{Name: name}); err == nil {
				promised <- name
			}
		})
	}
	for n := range some { // each within the patience of Poll
		testenv.Poll(t, fmt.Sprintf("%d are created", n+1), func() bool { return len(promised) > n })
	}
	h.kill()
	wg.Wait()
	close(promised)
	h = startHub(t, e, state, "--pool", "0")
	list, err := h.List(t.Context(), client.ListOptions{})
	if err != nil || len(list) == 0 {
		t.Fatalf("got %v, %v, want all confirmed sandboxes", list, err)
	}
	have := map[string]bool{}
	for _, sb := range list {
		have[sb.Name] = true
		h.wantOutput(sb.Name, "echo hello", "hello\n")
	}
	n := 0
	for name := range promised {
		if n++; !have[name] {
			t.Errorf("%s is lost", name)
		}
	}
	t.Logf("%d of %d were promised, %d are there", n, all, len(list))
	// The engine may still create containers of killed hubs.
	label := "label=io.cove.hub=" +
		strings.TrimSpace(e.Run(t, nil, "inspect", "-f", `{{index .Config.Labels "io.cove.hub"}}`, "cove-"+list[0].ID))
	count := func() int { return len(strings.Fields(e.Run(t, nil, "ps", "-aq", "--filter", label))) }
	// The second hub removes containers that the engine creates late for the first.
	testenv.Poll(t, "the engine has no other containers", func() bool { return count() == len(list) })
	for name := range have {
		wg.Go(func() {
			if err := h.Delete(t.Context(), name); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	testenv.Poll(t, "no container is left", func() bool { return count() == 0 })
}
