package page

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/cove-sandbox/cove/client"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// fakeEnvironment is an environment whose server is not aio.
const fakeEnvironment = `[{"name": "fake", "port": 8000, "ready_path": "/", "command": ["bash", "-c", "eval \"$SETUP\""]}]`

// hubs starts a hub with a key and one without, for stories that visit both. more are additional flags.
func hubs(t *testing.T, more ...string) []string {
	t.Helper()
	testenv.NeedRoot(t)
	testenv.Need(t, "python3")
	const key = "key-of-the-visitor"
	environments := filepath.Join(t.TempDir(), "environments.json")
	if err := os.WriteFile(environments, []byte(fakeEnvironment), 0o600); err != nil {
		t.Fatal(err)
	}
	start := func(env ...string) string {
		args := []string{"hub", "--listen", "127.0.0.1:0", "--log-level", "error", "--state", t.TempDir(), "--environments", environments}
		args = append(args, withVenv(more)...)
		return launch(t, exec.Command(cove, args...), env...)
	}
	guarded, open := start("COVE_API_KEY="+key), start()
	for _, cfg := range []client.Config{{URL: guarded, Key: key}, {URL: open}} {
		c, err := client.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { deleteAll(t, c) }) // sandboxes outlive their hub
	}
	return []string{"KEY=" + key, "KEY_URL=" + guarded, "OPEN_URL=" + open}
}

// deleteAll deletes all sandboxes of a hub.
func deleteAll(t *testing.T, c *client.Client) {
	defer c.Close()
	list, err := c.List(context.Background(), client.ListOptions{})
	if err != nil {
		t.Error(err)
	}
	for _, sb := range list {
		if err := c.Delete(context.Background(), sb.Name); err != nil {
			t.Error(err)
		}
	}
}

// TestPagesHaveTheirOrigins checks that all our pages and a previewed page work by host name and by IP address, with and
// without a key.
func TestPagesHaveTheirOrigins(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	testenv.Need(t, "Xtigervnc", "openbox")
	runStory(t, "origin_pages.mjs", hubs(t)...)
}

// TestHostilePages checks that no page of a sandbox can act on the hub, on another sandbox or on another site of its sandbox.
func TestHostilePages(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	runStory(t, "origin_hostile.mjs", hubs(t)...)
}

// TestPassInTheAddress checks that the address of a sandbox's page is useless to others, and after its owner has signed out.
func TestPassInTheAddress(t *testing.T) {
	t.Parallel()
	runStory(t, "pass.mjs", hubs(t)...)
}
