package cluster_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/test/cluster"
)

// TestEngineEndsWithItsOwner: an engine whose test is killed leaves nothing behind.
func TestEngineEndsWithItsOwner(t *testing.T) {
	checkEngineEnds(t, cluster.StartDocker)
}

// TestPodmanEndsWithItsOwner: Podman leaves nothing behind either.
func TestPodmanEndsWithItsOwner(t *testing.T) {
	checkEngineEnds(t, cluster.StartPodman)
}

func checkEngineEnds(t *testing.T, start func(testing.TB) *cluster.Engine) {
	checkEndsWithOwner(t, func() string { return start(t).Dir }, func(dir string) bool {
		return len(testenv.ProcessesOf(filepath.Join(dir, "docker.sock"))) > 0
	}, leftOf)
}

// TestPodman: a hub on Podman works like on Docker, and programs cannot escape from its sandboxes.
func TestPodman(t *testing.T) {
	t.Parallel()
	e := cluster.StartPodman(t)
	e.ImportSlim(t, "../..")
	doctor := exec.Command(filepath.Join(programs, "cove"), "doctor", "--provider", "docker", "--docker-host",
		"unix://"+e.Socket, "--state", t.TempDir())
	if out, err := doctor.CombinedOutput(); err != nil || !bytes.Contains(out, []byte("Engine: Podman Engine ")) {
		t.Errorf("doctor: got %v: %s, want Podman", err, out)
	}
	testHub(t, e)
}

// leftOf lists what an engine has left behind, except its cache.
func leftOf(dir string) (left []string) {
	left = testenv.ProcessesOf(filepath.Join(dir, "docker.sock"))
	for _, name := range []string{"exec", "docker.sock", "init.pid"} {
		if _, err := os.Lstat(filepath.Join(dir, name)); err == nil {
			left = append(left, name)
		}
	}
	if mounts, _ := os.ReadFile("/proc/self/mountinfo"); bytes.Contains(mounts, []byte(dir)) {
		left = append(left, "a mount")
	}
	return left
}
