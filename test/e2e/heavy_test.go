package e2e

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/internal/testenv"
)

// Large programs work inside a sandbox and stay within its limits; who takes too
// much memory is ended there, and there alone, and the sandbox tells.
func TestHeavyPrograms(t *testing.T) {
	t.Parallel()
	testenv.Need(t, "chromium", "Xtigervnc", "openbox", "node", "python3")
	h := serveHub(t)
	h.must(t, "create", "a")
	h.must(t, "create", "neighbour")
	post := func(name, path, body string) string {
		t.Helper()
		status, reply := h.post(t, "/sandbox/"+name+path, body)
		if status != 200 || !strings.Contains(reply, `"success":true`) {
			t.Errorf("%s: %d %s", path, status, reply)
		}
		return reply
	}

	// Chromium with its own sandbox on.
	if status, reply := h.get(t, "/sandbox/a/v1/browser/info"); status != 200 || !strings.Contains(reply, `"sandbox":true`) {
		t.Errorf("%d %s", status, reply)
	}
	// A kernel that keeps 100 MB.
	if reply := post("a", "/v1/jupyter/execute", `{"code":"data = bytearray(100 << 20)\nlen(data)"}`); !strings.Contains(reply, "104857600") {
		t.Error(reply)
	}
	// A Node program with many objects.
	if reply := post("a", "/v1/nodejs/execute", `{"code":"const rows = Array.from({length: 500000}, (_, i) => ({i, text: 'row ' + i})); console.log(rows.reduce((n, r) => n + r.text.length, 0))"}`); !strings.Contains(reply, "4888890") {
		t.Error(reply)
	}

	out, errs, code := h.cove(t, "", "exec", "a", "python3 -c 'x = bytearray(3 << 30); print(len(x))'")
	if code == 0 || strings.Contains(out, "3221225472") {
		t.Errorf("3 GiB in a sandbox of 1 GiB: %d %s %s", code, out, errs)
	}
	var stats struct {
		Kills int `json:"oom_kills"`
	}
	if err := json.Unmarshal([]byte(h.must(t, "stats", "a")), &stats); err != nil || stats.Kills == 0 {
		t.Errorf("the kill is not told: %+v %v", stats, err)
	}
	for _, name := range []string{"a", "neighbour"} {
		if out := h.must(t, "exec", name, "echo alive"); out != "alive\n" {
			t.Errorf("%s: %q", name, out)
		}
	}
}
