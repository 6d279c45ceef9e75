package e2e

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// TestInsideAndOutsideCountAlike: the CPU time measured in the sandbox matches the hub's figures, including programs on several
// processors and programs that have ended.
func TestInsideAndOutsideCountAlike(t *testing.T) {
	t.Parallel()
	h := serveHub(t)
	h.must(t, "create", "a")
	c := h.client(t)
	// Two concurrent programs, each with one second of CPU time.
	burn := `for i in 1 2; do python3 -c 'import time
while time.process_time() < 1: pass' & done; wait; echo burned`
	if out := h.must(t, "exec", "a", "--", "sh", "-c", burn); out != "burned\n" {
		t.Fatalf("burn: got %q, want burned", out)
	}
	before, err := c.Stats(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	var inside struct {
		Data struct {
			Cgroup struct {
				Usec int64 `json:"cpu_usage_usec"`
			} `json:"cgroup"`
		} `json:"data"`
	}
	reply := h.call(t, "GET /sandbox/a/v1/sandbox/observe/live", "")
	if err := json.Unmarshal([]byte(strings.TrimPrefix(reply, "200 OK ")), &inside); err != nil {
		t.Fatalf("%v: %s", err, reply)
	}
	after, err := c.Stats(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	if before.CPUSeconds < 0 {
		testenv.Lack(t, "the hub has no control groups here: it cannot count")
	}
	const slack = 0.1 // of a second: the kernel counts in ticks
	seconds := float64(inside.Data.Cgroup.Usec) / 1e6
	if seconds < 2 || seconds < before.CPUSeconds*0.97-slack || seconds > after.CPUSeconds*1.03+slack {
		t.Errorf("got %.2f s inside, between %.2f and %.2f s outside, want the same, and at least 2 s: %s", seconds,
			before.CPUSeconds, after.CPUSeconds, reply)
	}
}
