package page

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/test/attack/route"
)

// TestForeignSiteRunsNothing visits every URL of a sandbox without credentials, of a hub with and without keys, and of their
// sandboxes from a foreign site, with files of the attacker in every possible place. No script of the attacker may run on our
// origins. The test takes many minutes and therefore runs nightly; FULL=1 tries every way for every URL.
// TestForeignSitesOpenOnlyOwnPages in test/e2e requests the same routes without a browser in every run.
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
