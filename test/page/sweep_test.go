package page

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/test/attack/route"
)

// TestForeignSiteRunsNothing: a foreign site visits every address of a sandbox without credentials, of a hub without and with
// keys, and of their sandboxes, with files of the attacker's wherever one can be. None of its scripts runs on an origin of ours.
// It takes many minutes, so that it runs at night; FULL=1 tries every way for every address as well. The same routes
// without a browser are tried each time: TestForeignSitesOpenOnlyOwnPages in test/e2e.
func TestForeignSiteRunsNothing(t *testing.T) {
	t.Parallel()
	testenv.Nightly(t)
	testenv.Need(t, "python3")
	list, err := json.Marshal(map[string][]route.Target{
		"sandbox": route.Targets(t, route.Sandbox(t), route.SandboxExamples()), "hub": route.Targets(t, route.Hub(t), route.HubExamples()),
	})
	if err != nil {
		t.Fatal(err)
	}
	targets := filepath.Join(t.TempDir(), "targets.json")
	if err := os.WriteFile(targets, list, 0o600); err != nil {
		t.Fatal(err)
	}
	home := t.TempDir()
	address := serve(t, "HOME="+home)
	runStory(t, "sweep.mjs", append(hubs(t, "--keep-activity", "1h"), "AIO="+address, "AIO_HOME="+home, "TARGETS="+targets)...)
}
