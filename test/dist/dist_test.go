// Package dist installs the result of make dist in a minimal Debian system.
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

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// debian is a minimal Debian system, which scripts/deps creates with debootstrap.
const debian = "../../.tools/debian"

// install runs in separate namespaces, with the minimal system as its root.
const install = `set -e
mount -t overlay overlay -o lowerdir="$DEBIAN",upperdir="$WORK/upper",workdir="$WORK/work" "$WORK/root"
cd "$WORK/root"
mount -t tmpfs tmpfs tmp; mkdir -p var/lib/cove; mount -t tmpfs tmpfs var/lib/cove
mount --rbind /dev dev; mount --rbind /sys sys; mount -t proc proc proc
cp "$DEB" tmp/cove.deb; mkdir -p old
pivot_root . old; cd /; umount -l old
exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root sh -ec '
dpkg -i /tmp/cove.deb
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
'`

// The Debian package installs and serves in a minimal Debian system without other packages.
func TestDebianPackageServesInAnEmptyDebian(t *testing.T) {
	t.Parallel()
	testenv.Engine(t)
	testenv.NeedRoot(t)
	testenv.Need(t, "dpkg-deb", "unshare")
	if _, err := os.Stat(filepath.Join(debian, "usr/bin/dpkg")); err != nil {
		testenv.Lack(t, debian+" is missing; run make deps")
	}
	system, err := filepath.EvalSymlinks(debian)
	if err != nil {
		t.Fatal(err)
	}
	if system, err = filepath.Abs(system); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	out := filepath.Join(t.TempDir(), "dist")
	build := exec.CommandContext(ctx, "scripts/dist", "9.8.7-rc1")
	build.Dir = "../.."
	build.Env = append(os.Environ(), "OUT="+out, "PLATFORMS=linux/"+runtime.GOARCH)
	if b, err := build.CombinedOutput(); err != nil {
		t.Fatalf("scripts/dist: got error %v and %s, want none", err, b)
	}
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

	work := t.TempDir()
	for _, dir := range []string{"upper", "work", "root"} {
		if err := os.Mkdir(filepath.Join(work, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(ctx, "unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation", "private", "bash", "-c", install)
	cmd.Env = append(os.Environ(), "DEBIAN="+system, "WORK="+work, "DEB="+filepath.Join(out, "cove_9.8.7-rc1_"+runtime.GOARCH+".deb"))
	b, err := cmd.CombinedOutput()
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
