package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// The included environments work, and each has a pool and limits.
func TestShippedEnvironments(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	const file = "../../deploy/environments.json"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var list []struct {
		Name        string `json:"name"`
		Pool        int    `json:"pool"`
		CPULimit    string `json:"cpu_limit"`
		MemoryLimit string `json:"memory_limit"`
		DiskLimit   string `json:"disk_limit"`
	}
	if err := json.Unmarshal(text, &list); err != nil {
		t.Fatal(err)
	}
	// No pools: their sandboxes would outlive the hub.
	cold := filepath.Join(t.TempDir(), "environments.json")
	if err := os.WriteFile(cold, regexp.MustCompile(`"pool": [0-9]+`).ReplaceAll(text, []byte(`"pool": 0`)), 0o644); err != nil {
		t.Fatal(err)
	}
	h := serveHub(t, "--environments", cold, "--private-networks", "127.0.0.1/32")
	with := registries(t)
	// The purpose of each environment. All environments are tested.
	purpose := map[string]check{
		"aio":         {"hostname", "for-aio"},
		"python":      {"pwd; python3 -c 'import numpy, pandas, matplotlib; print(1)'", "/home/gem/workspace\n1"},
		"node":        {"pwd; node -p 6*7; npm --version | wc -l", "/home/gem/workspace\n42\n1"},
		"browser":     {"command -v chromium >/dev/null && echo there; sudo id 2>&1 || true", "there\nsudo: this sandbox does not allow root…"},
		"desktop":     {"aio browser info >/dev/null 2>&1; aio sandbox info | grep -c gem", "…"},
		"claude-code": {with + "claude 2>/dev/null", "node runs"},
		"codex":       {with + "codex 2>/dev/null; hash -r; command -v codex", "node runs\n/home/gem/.local/bin/codex"},
		"opencode":    {with + "opencode 2>/dev/null", "node runs"},
	}
	for _, e := range list {
		want, known := purpose[e.Name]
		if !known || e.Pool < 1 || e.CPULimit == "" || e.MemoryLimit == "" || e.DiskLimit == "" {
			t.Errorf("got %+v, want a known environment with a pool and limits", e)
			continue
		}
		delete(purpose, e.Name)
		// Not with the hook: only the test knows the registries.
		h.must(t, "create", "for-"+e.Name, "--environment", e.Name, "--env", "RUN_HOOK_POST_READY=true")
		h.verify(t, "for-"+e.Name, want)
	}
	if len(purpose) > 0 {
		t.Errorf("missing environments: %v", purpose)
	}
	if log := h.log.String(); strings.Contains(log, "environments file") {
		t.Errorf("the hub complains about the file: %s", log)
	}
}
