package cluster_test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/filesystem/lockfile"
)

// ownerEnv makes a test start its engine and wait until it is killed.
const ownerEnv = "COVE_TEST_OWNER"

// checkEndsWithOwner: an engine ends when its test is killed. Start starts it and returns its folder, running reports whether
// it runs, and leftOf lists its remains.
func checkEndsWithOwner(t *testing.T, start func() (dir string), running func(dir string) bool, leftOf func(dir string) []string) {
	const mark = "started in "
	if os.Getenv(ownerEnv) != "" {
		fmt.Println(mark + start())
		testenv.Hang()
	}
	t.Parallel()
	testenv.Engine(t)
	testenv.NeedRoot(t)
	owner := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
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
		_, dir, _ = strings.Cut(lines.Text(), mark)
	}
	if dir == "" {
		testenv.Lack(t, "it does not start: "+said)
	}
	if !running(dir) {
		t.Errorf("no process runs in %s", dir)
	}
	engine := initOf(dir)
	if err := owner.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	lock, err := os.Open(filepath.Join(dir, "lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	// Another test can use the folder as soon as it can lock it, which it can only if everything has ended.
	reused := false
	testenv.Poll(t, "it ends", func() bool {
		reused = initOf(dir) != "" && initOf(dir) != engine
		return reused || lockfile.TryLock(lock) == nil
	})
	testenv.Poll(t, "nothing is left", func() bool { return reused || len(leftOf(dir)) == 0 })
}

// initOf returns the process ID of the first process of the engine in a folder, if one runs there.
func initOf(dir string) string {
	pid, err := os.ReadFile(filepath.Join(dir, "init.pid"))
	if err != nil {
		return ""
	}
	return string(pid)
}
