package e2e

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// TestMountsShowNothingOfTheHost: the kernel's mount tables in a sandbox contain no path of the state
// folder, of the programs, or of home folders of the host.
func TestMountsShowNothingOfTheHost(t *testing.T) {
	t.Parallel()
	testenv.NeedRoot(t)
	h := serveHub(t)
	checkMountsOf(t, h, "namespaces")
	rootless := serveRootless(t)
	rootless.must(t, "create", "a")
	checkMounts(t, "without root", rootless, "a")
}

func TestMountsShowNothingOfTheHostGVisor(t *testing.T) {
	t.Parallel()
	testenv.NeedRoot(t)
	checkMountsOf(t, serveHub(t, "--runsc", testenv.GVisor(t)), "gvisor")
}

func checkMountsOf(t *testing.T, h *hub, tier string) {
	t.Helper()
	h.must(t, "volume", "create", "v")
	h.must(t, "create", tier, "--isolation", tier, "--volumes", `{"name":"v","target":"/data"}`)
	checkMounts(t, tier, h, tier)
}

func checkMounts(t *testing.T, what string, h *hub, name string) {
	t.Helper()
	out := h.must(t, "exec", name, "--",
		"cat /proc/self/mountinfo /proc/self/mounts /proc/self/mountstats /proc/1/mountinfo 2>/dev/null; true")
	repository, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	venv, _ := filepath.EvalSymlinks("../../.venv")
	secrets := []string{h.State, filepath.Base(filepath.Dir(h.State)), filepath.Dir(aio),
		filepath.Base(filepath.Dir(aio)), repository, "/root"}
	if venv != "" {
		secrets = append(secrets, venv, filepath.Dir(venv)+"/")
	}
	// The kernel shows the path in the filesystem, which differs from the path of the state folder if
	// a folder above it is a bind mount.
	sockets := filepath.Join(filepath.Base(filepath.Dir(h.State)), filepath.Base(h.State), "sockets") + "/"
	inMemory := socketsInMemory(t, h)
	for _, line := range strings.Split(out, "\n") {
		if strings.Contains(line, sockets) && !inMemory {
			continue // see docs/security.md
		}
		for _, secret := range secrets {
			if strings.Contains(strings.ReplaceAll(line, "/root,", ""), secret) {
				t.Errorf("%s: got %q, want no path of %s", what, line, secret)
				break
			}
		}
	}
}

// socketsInMemory reports whether the hub keeps sockets on a separate filesystem.
func socketsInMemory(t *testing.T, h *hub) bool {
	t.Helper()
	var own, above unix.Stat_t
	if err := errors.Join(unix.Stat(filepath.Join(h.State, "sockets"), &own), unix.Stat(h.State, &above)); err != nil {
		t.Fatal(err)
	}
	return own.Dev != above.Dev
}
