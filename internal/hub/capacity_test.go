package hub

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestRequestsBeyondTheMachineAreRejected: no sandbox gets more CPUs or memory than the machine has, and the
// error says how many are available. Requests of an environment are reduced instead.
func TestRequestsBeyondTheMachineAreRejected(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "environments.json")
	if err := os.WriteFile(file, []byte(`[{"name":"large","cpu":"8","cpu_limit":"16"}]`), 0o600); err != nil {
		t.Fatal(err)
	}
	r := newRig(t, setup{hub: Config{Environments: file}, cpus: 2, memory: 4 << 30})
	for body, says := range map[string]string{
		`{"cpu_limit":"64"}`:                    "cpu_limit 64000m: this machine has 2000m",
		`{"cpu":"3","cpu_limit":"1"}`:           "cpu 3000m: this machine has 2000m",
		`{"memory_limit":"64Gi"}`:               "memory_limit 65536Mi: this machine has 4096Mi",
		`{"memory":"5Gi","memory_limit":"5Gi"}`: "this machine has 4096Mi",
	} {
		if a := r.do("POST", "/api/v1/sandbox", body); a.Status != 400 || !strings.Contains(a.Error, says) {
			t.Errorf("%s: got %d %s, want 400 that says %q", body, a.Status, a.Body, says)
		}
	}
	if o := r.create(`{"cpu_limit":"2","memory_limit":"4Gi"}`); o.CPULimit != "2000m" || o.MemoryLimit != "4096Mi" {
		t.Errorf("all resources of the machine: got %s and %s, want both granted", o.CPULimit, o.MemoryLimit)
	}
	if o := r.create(`{"environment":"large"}`); o.CPU != "2000m" || o.CPULimit != "2000m" {
		t.Errorf("an environment for a larger machine: got %s and %s, want all CPUs", o.CPU, o.CPULimit)
	}
}
