package page

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/client"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// guarded starts a hub that requires a key, with a sandbox "a".
func guarded(t *testing.T, more ...string) []string {
	t.Helper()
	testenv.NeedRoot(t)
	const key = "key-of-the-operator"
	state := t.TempDir()
	args := append([]string{"hub", "--listen", "127.0.0.1:0", "--log-level", "error", "--state", state}, withVenv(more)...)
	address := launch(t, exec.Command(cove, args...), "COVE_API_KEY="+key, "COVE_TENANTS=true")
	c, err := client.New(client.Config{URL: address, Key: key})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { deleteAll(t, c) })
	if _, err := c.Create(t.Context(), client.CreateOptions{Name: "a"}); err != nil {
		t.Fatal(err)
	}
	return []string{"KEY=" + key, "KEY_URL=" + address, "STATE=" + state}
}

// withVenv adds the flag for Python with data libraries to the flags of a hub, if make deps has installed it.
func withVenv(flags []string) []string {
	venv, err := filepath.EvalSymlinks("../../.venv")
	if err != nil {
		return flags
	}
	if venv, err = filepath.Abs(venv); err != nil {
		return flags
	}
	return append(flags, "--venv", venv)
}

// TestHome tests the page of a sandbox: standalone, below a prefix, over an interrupted connection, and through a hub with
// sign-in.
func TestHome(t *testing.T) {
	t.Parallel()
	testenv.Need(t, "Xtigervnc", "openbox")
	address := serve(t)
	through, control := cuttable(t, serve(t))
	runStory(t, "home.mjs", append(guarded(t), "URL="+address, "PREFIX_URL="+prefixed(t, address), "CUT_URL="+through,
		"CUT_CONTROL="+control)...)
}

// TestDashboard tests the dashboard of the hub as an administrator and as a tenant.
func TestDashboard(t *testing.T) {
	t.Parallel()
	environments := filepath.Join(t.TempDir(), "environments.json")
	warm := func(size int) {
		if err := os.WriteFile(environments, fmt.Appendf(nil, `[{"name":"ready","pool":%d}]`, size), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	warm(1)
	env := guarded(t, "--environments", environments, "--keep-activity", "1h")
	t.Cleanup(func() { // warm sandboxes would outlive the hub
		warm(0)
		address, key := strings.TrimPrefix(env[1], "KEY_URL="), strings.TrimPrefix(env[0], "KEY=")
		testenv.Poll(t, "there are no warm sandboxes", func() bool {
			return !strings.Contains(metrics(t, address, key), `cove_pool_ready{environment="ready"} 1`)
		})
	})
	runStory(t, "dashboard.mjs", env...)
}

// TestWall tests the wall of the dashboard with 50 sandboxes and sign-in.
func TestWall(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	testenv.Need(t, "Xtigervnc", "openbox")
	runStory(t, "wall.mjs", guarded(t)...)
}

// metrics returns the metrics of a hub.
func metrics(t *testing.T, address, key string) string {
	t.Helper()
	r, err := http.NewRequest(http.MethodGet, address+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("X-API-Key", key)
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("got %d %s %v, want 200", res.StatusCode, b, err)
	}
	return string(b)
}

// TestTypes checks the types in the comments of our pages.
func TestTypes(t *testing.T) {
	t.Parallel()
	testenv.Need(t, "node")
	tsc, err := filepath.Abs("node_modules/.bin/tsc")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(tsc); err != nil {
		testenv.Lack(t, "TypeScript is missing; run make deps")
	}
	if out, err := exec.Command(tsc, "-p", "../../web").CombinedOutput(); err != nil {
		t.Errorf("tsc: %v\n%s", err, out)
	}
}

// TestFiles tests the page with the files of the sandbox, including hostile content.
func TestFiles(t *testing.T) {
	t.Parallel()
	testenv.Need(t, "pdftoppm")
	address := serve(t)
	runStory(t, "files.mjs", append(guarded(t), "URL="+address, "PREFIX_URL="+prefixed(t, address), "DIR="+t.TempDir())...)
}

// TestHeaderOfASandbox tests what all pages of a sandbox show about it, until it is deleted.
func TestHeaderOfASandbox(t *testing.T) {
	t.Parallel()
	testenv.Need(t, "Xtigervnc", "openbox")
	runStory(t, "box.mjs", append(hubs(t), "HUBS=by name, with a key; by address, open")...)
}

// TestHeaderOnOtherHubs is TestHeaderOfASandbox for the other combinations of addresses and keys.
func TestHeaderOnOtherHubs(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	testenv.Need(t, "Xtigervnc", "openbox")
	runStory(t, "box.mjs", append(hubs(t), "HUBS=by name, open; by address, with a key")...)
}
