package page

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/cove-sandbox/cove/client"
	"github.com/cove-sandbox/cove/internal/testenv"
)

// guarded starts a hub that asks for a key, with a sandbox "a".
func guarded(t *testing.T) []string {
	t.Helper()
	testenv.NeedRoot(t)
	const key = "key-of-the-operator"
	args := []string{"hub", "--listen", "127.0.0.1:0", "--log-level", "error", "--state", t.TempDir()}
	if venv, err := filepath.EvalSymlinks("../../.venv"); err == nil {
		if venv, err = filepath.Abs(venv); err == nil {
			args = append(args, "--venv", venv)
		}
	}
	address := launch(t, exec.Command(cove, args...), "COVE_API_KEY="+key, "COVE_TENANTS=true")
	c, err := client.New(client.Config{URL: address, Key: key})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { deleteAll(t, c) })
	if _, err := c.Create(t.Context(), client.CreateOptions{Name: "a"}); err != nil {
		t.Fatal(err)
	}
	return []string{"KEY=" + key, "KEY_URL=" + address}
}

// TestHome: the sandbox's page, alone, below a prefix, over a cut connection, and through a hub
// where a person signs in.
func TestHome(t *testing.T) {
	t.Parallel()
	testenv.Need(t, "Xtigervnc", "openbox")
	address := serve(t)
	through, control := cuttable(t, address)
	runStory(t, "home.mjs", append(guarded(t), "URL="+address, "PREFIX_URL="+prefixed(t, address), "CUT_URL="+through, "CUT_CONTROL="+control)...)
}

// TestDashboard: the hub's dashboard, as an administrator and as a tenant.
func TestDashboard(t *testing.T) {
	t.Parallel()
	runStory(t, "dashboard.mjs", guarded(t)...)
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

// TestFiles: the files of the sandbox in a page, with what a hostile sandbox puts there.
func TestFiles(t *testing.T) {
	t.Parallel()
	testenv.Need(t, "pdftoppm")
	address := serve(t)
	runStory(t, "files.mjs", append(guarded(t), "URL="+address, "PREFIX_URL="+prefixed(t, address), "DIR="+t.TempDir())...)
}
