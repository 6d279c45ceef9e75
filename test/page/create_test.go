package page

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/cove-sandbox/cove/client"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// open starts a hub without keys or sandboxes, with an environment "slim", and returns its address.
func open(t *testing.T) string {
	t.Helper()
	testenv.NeedRoot(t)
	environments := filepath.Join(t.TempDir(), "environments.json")
	text := `[{"name":"slim","description":"A small computer","cpu_limit":"500m","memory_limit":"256Mi"}]`
	if err := os.WriteFile(environments, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	address := launch(t, exec.Command(cove, "hub", "--listen", "127.0.0.1:0", "--log-level", "error", "--state", t.TempDir(),
		"--environments", environments))
	c, err := client.New(client.Config{URL: address})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { deleteAll(t, c); c.Close() })
	return address
}

// TestCreate tests the dialog that creates a sandbox, on a hub without keys.
func TestCreate(t *testing.T) {
	t.Parallel()
	runStory(t, "create.mjs", "URL="+open(t))
}

// TestKeys tests the command palette, the keys of the dashboard, and what needs attention.
func TestKeys(t *testing.T) {
	t.Parallel()
	runStory(t, "keys.mjs", "URL="+open(t))
}
