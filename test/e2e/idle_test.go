package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// The hub stops an unused sandbox. A request starts it again with its disk, working directory and
// name.
func TestIdleStopAndWake(t *testing.T) {
	t.Parallel()
	h := serveHub(t)
	if status, body := h.post(t, "/api/v1/sandbox",
		`{"name":"alpha","idle_timeout":0.02,"idle_policy":"stop","workdir":"/home/gem/project"}`); status != 200 {
		t.Fatalf("create: got %d %s, want 200", status, body)
	}
	h.verify(t, "alpha", check{"echo kept > note; sudo sh -c 'echo too > /etc/note'; (sleep 1000 >/dev/null 2>&1 " +
		"&) ; until pgrep -x sleep >/dev/null; do :; done; pgrep -xc sleep", "1"})
	testenv.Poll(t, "the idle sandbox is stopped", func() bool {
		var o struct {
			Status string `json:"status"`
		}
		return json.Unmarshal([]byte(h.must(t, "get", "alpha")), &o) == nil && o.Status == "stopped"
	})
	h.verify(t, "alpha", check{"pwd; cat note /etc/note; hostname; pgrep -xc sleep || true", "/home/gem/project\nkept\ntoo\nalpha\n0"})
}

// A sandbox that uses neither sudo nor Python has no overhead for them: it has the same processes as
// one without them, and only the mounts of the programs in addition.
func TestSudoAndPythonCostNothingUnused(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "environments.json")
	if err := os.WriteFile(file, []byte(`[{"name":"plain","image":"","description":"no root","sudo":false}]`), 0o644); err != nil {
		t.Fatal(err)
	}
	with, without := serveHub(t), serveHub(t, "--environments", file, "--venv", "none")
	with.must(t, "create", "alpha")
	without.must(t, "create", "alpha", "--environment", "plain")
	look := func(h *hub, command string) map[string]bool {
		set := map[string]bool{}
		for line := range strings.Lines(h.must(t, "exec", "alpha", "--", command)) {
			set[strings.TrimSpace(line)] = true
		}
		return set
	}
	for _, c := range []struct {
		what, command string
		may           map[string]bool
	}{
		{"processes", "ps -eo user=,args= | grep -v ' ps -eo\\| grep -v\\|bash -c'", nil},
		{"mounts", "cut -d' ' -f2,3 /proc/mounts", map[string]bool{"/run/venv overlay": true}},
		{"files in the home", "find ~ -newer /proc/1/comm", nil},
	} {
		rich, plain := look(with, c.command), look(without, c.command)
		if len(plain) == 0 && c.what != "files in the home" {
			t.Errorf("%s: got none, want some", c.what)
		}
		for line := range rich {
			if !plain[line] && !c.may[line] {
				t.Errorf("%s: got %q, which a sandbox without sudo and Python does not have", c.what, line)
			}
		}
	}
	// BenchmarkHubCrowd compares the memory precisely; here it must only be similar.
	memory := func(h *hub) (n int64) {
		var stats struct {
			Memory int64 `json:"memory_bytes"`
		}
		if err := json.Unmarshal([]byte(h.must(t, "stats", "alpha")), &stats); err != nil {
			t.Fatal(err)
		}
		return stats.Memory
	}
	rich, plain := memory(with), memory(without)
	t.Logf("memory: %d bytes with sudo and Python, %d without", rich, plain)
	if plain > 0 && rich > plain+8<<20 {
		t.Errorf("memory: got %d bytes with sudo and Python unused, want about the %d bytes without", rich, plain)
	}
}
