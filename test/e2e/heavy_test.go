package e2e

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// Large programs work within the limits of a sandbox. The kernel kills a program that exceeds the
// memory limit; other programs are not affected, and the sandbox reports the kill.
func TestHeavyPrograms(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	testenv.Need(t, "chromium", "Xtigervnc", "openbox", "node", "python3")
	h := serveHub(t)
	h.must(t, "create", "a")
	h.must(t, "create", "neighbour")
	post := func(name, path, body string) string {
		t.Helper()
		status, reply := h.post(t, "/sandbox/"+name+path, body)
		if status != 200 || !strings.Contains(reply, `"success":true`) {
			t.Errorf("%s: %d %s, want status 200, reply containing %q", path, status, reply, `"success":true`)
		}
		return reply
	}

	// Chromium with its own sandbox enabled.
	if status, reply := h.get(t, "/sandbox/a/v1/browser/info"); status != 200 || !strings.Contains(reply, `"sandbox":true`) {
		t.Errorf("%d %s, want status 200, reply containing %q", status, reply, `"sandbox":true`)
	}
	// A Jupyter kernel that holds 100 MB.
	if reply := post("a", "/v1/jupyter/execute", `{"code":"data = bytearray(100 << 20)\nlen(data)"}`); !strings.Contains(reply, "104857600") {
		t.Errorf("got %q, want reply containing \"104857600\"", reply)
	}
	// A Node program with many objects.
	if reply := post("a", "/v1/nodejs/execute",
		`{"code":"const rows = Array.from({length: 500000}, (_, i) => ({i, text: 'row ' + i})); `+
			`console.log(rows.reduce((n, r) => n + r.text.length, 0))"}`); !strings.Contains(reply, "4888890") {
		t.Errorf("got %q, want reply containing \"4888890\"", reply)
	}

	out, errs, code := h.cove(t, "", "exec", "a", "python3 -c 'x = bytearray(3 << 30); print(len(x))'")
	if code == 0 || strings.Contains(out, "3221225472") {
		t.Errorf(`3 GiB in a sandbox of 1 GiB: %d %s %s, want a nonzero exit code and no "3221225472" in it`, code, out, errs)
	}
	var stats struct {
		Kills int `json:"oom_kills"`
	}
	if err := json.Unmarshal([]byte(h.must(t, "stats", "a")), &stats); err != nil || stats.Kills == 0 {
		t.Errorf("stats are %+v, %v, want oom_kills above 0", stats, err)
	}
	for _, name := range []string{"a", "neighbour"} {
		if out := h.must(t, "exec", name, "echo alive"); out != "alive\n" {
			t.Errorf("%s: %q, want %q", name, out, "alive\n")
		}
	}
}
