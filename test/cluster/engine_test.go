package cluster_test

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/internal/testenv"
	"github.com/cove-sandbox/cove/test/cluster"
)

// ownerEnv makes the test start an engine and wait to be killed.
const ownerEnv = "COVE_TEST_ENGINE_OWNER"

// TestEngineEndsWithItsOwner: an engine whose test is killed leaves nothing.
func TestEngineEndsWithItsOwner(t *testing.T) {
	if os.Getenv(ownerEnv) != "" {
		e := cluster.StartDocker(t)
		fmt.Println("engine in", e.Dir)
		select {}
	}
	t.Parallel()
	testenv.NeedRoot(t)
	owner := exec.Command("/proc/self/exe", "-test.run=^TestEngineEndsWithItsOwner$", "-test.v")
	owner.Env = append(os.Environ(), ownerEnv+"=1")
	out, err := owner.StdoutPipe()
	if err == nil {
		err = owner.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer owner.Wait()
	defer owner.Process.Kill()
	var dir, said string
	for lines := bufio.NewScanner(out); dir == "" && lines.Scan(); {
		said += lines.Text() + "\n"
		_, dir, _ = strings.Cut(lines.Text(), "engine in ")
	}
	if dir == "" {
		testenv.Lack(t, "no engine: "+said)
	}
	if len(testenv.ProcessesOf(filepath.Join(dir, "docker.sock"))) == 0 {
		t.Errorf("no process of the engine in %s, want some", dir)
	}
	if err := owner.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	var left []string
	testenv.Poll(t, "the engine ends", func() bool { left = leftOf(dir); return len(left) == 0 })
}

// leftOf lists what an engine has left, apart from its cache.
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
