package page

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// components is where make deps installs VS Code and JupyterLab.
func components(t *testing.T) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(testenv.NeedFile(t, "../../.tools/components"))
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestWorkbench tests VS Code and JupyterLab: standalone, below a prefix, through a hub, killed, disabled and not installed.
// They run one after the other, because each loads many megabytes into a browser.
func TestWorkbench(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	installed := components(t)
	for _, name := range []string{"code-server", "jupyterlab"} {
		if _, err := os.Stat(filepath.Join(installed, name)); err != nil {
			testenv.Lack(t, name+" is missing; run make deps")
		}
	}
	work, venv := t.TempDir(), testenv.NeedFile(t, "../../.venv")
	address := serve(t, "AIO_COMPONENTS="+installed, "AIO_VENV="+venv, "WORKSPACE="+work)
	env := append(guarded(t, "--components", installed), "URL="+address, "PREFIX_URL="+prefixed(t, address), "DIR="+work,
		"DISABLED_URL="+serve(t, "AIO_COMPONENTS="+installed, "DISABLE_CODE_SERVER=true", "DISABLE_JUPYTER=true"), "BARE_URL="+serve(t))
	for name, story := range map[string]string{"code": "code_server.mjs", "lab": "lab.mjs"} {
		t.Run(name, func(t *testing.T) { runStory(t, story, env...) })
	}
}
