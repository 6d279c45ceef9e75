package dist

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

// install is what an administrator types.
const install = `
dpkg -i /exchange/cove.deb
cove version
cove hub --log-level warn > /tmp/log 2>&1 &
for i in $(seq 600); do cove list > /dev/null 2>&1 && break; sleep 0.1; done
cove list > /dev/null || { cat /tmp/log; exit 1; }
cove create a
cove exec a -- "echo ran as \$(whoami)"
cove rm a
kill -TERM $!
wait $! || true
dpkg -r cove
test ! -e /usr/bin/cove
`

// The Debian package installs and serves in a minimal Debian system without other packages.
func TestDebianPackageServesInAnEmptyDebian(t *testing.T) {
	t.Parallel()
	system := StartSystem(t, "bookworm")
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	out := Build(t, "9.8.7-rc1")
	check := exec.CommandContext(ctx, "sha256sum", "--check", "--strict", "SHA256SUMS")
	check.Dir = out
	if b, err := check.CombinedOutput(); err != nil || bytes.Count(b, []byte(": OK")) != 3 {
		t.Errorf("checksums: got error %v and %s, want three files", err, b)
	}
	deb := exec.CommandContext(ctx, "dpkg-deb", "--field", "cove_9.8.7-rc1_"+runtime.GOARCH+".deb", "Recommends")
	deb.Dir = out
	// Without it, neither a hub nor a sandbox can install Python packages.
	if b, err := deb.CombinedOutput(); err != nil || !strings.Contains(string(b), "python3-venv") {
		t.Errorf("recommended packages: got error %v and %s, want python3-venv", err, b)
	}
	checkSBOM(t, filepath.Join(out, "cove-9.8.7-rc1-linux-"+runtime.GOARCH+".spdx.json"))

	if err := os.Link(filepath.Join(out, "cove_9.8.7-rc1_"+runtime.GOARCH+".deb"), filepath.Join(system.Exchange, "cove.deb")); err != nil {
		t.Fatal(err)
	}
	b, err := system.Command(ctx, "root", "/", nil, install).CombinedOutput()
	if err != nil || !strings.Contains(string(b), "cove 9.8.7-rc1\n") || !strings.Contains(string(b), "\na\nran as gem\n") {
		t.Errorf("got error %v and %s, want the version, the name and the output", err, b)
	}
}

func checkSBOM(t *testing.T, path string) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var sbom struct {
		Version  string `json:"spdxVersion"`
		Packages []struct {
			Name string `json:"name"`
		} `json:"packages"`
		Files []struct {
			Name string `json:"fileName"`
		} `json:"files"`
	}
	if err := json.Unmarshal(b, &sbom); err != nil {
		t.Fatal(err)
	}
	if sbom.Version != "SPDX-2.3" || len(sbom.Packages) < 10 || len(sbom.Files) < 4 {
		t.Errorf("got version %q, %d packages and %d files, want SPDX-2.3 with dependencies and programs",
			sbom.Version, len(sbom.Packages), len(sbom.Files))
	}
}
