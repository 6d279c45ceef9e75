package testenv

import (
	"fmt"
	"os"
	"os/exec"
	"testing"
)

// MainWithPrograms builds the programs of cmd/ into a folder, passes it to use, runs
// the tests of a package and exits. root is the path to the module's root. Call it
// from TestMain.
func MainWithPrograms(m *testing.M, root string, use func(dir string)) {
	code, err := runWithPrograms(m, root, use)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func runWithPrograms(m *testing.M, root string, use func(dir string)) (int, error) {
	if dir := os.Getenv("TEST_PROGRAMS"); dir != "" { // built by test/lane
		use(dir)
		return m.Run(), nil
	}
	dir, err := os.MkdirTemp("", "cove-programs-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil { // tests run the programs as other users, too
		return 0, err
	}
	if err := build(dir+"/", root+"/cmd/..."); err != nil {
		return 0, err
	}
	use(dir)
	return m.Run(), nil
}

// Build builds programs: their packages, by the paths that they get.
func Build(t testing.TB, programs map[string]string) {
	t.Helper()
	os.Getenv("TEST_TREE") // set by test/lane: Go runs the test again if it changes
	for path, pkg := range programs {
		if err := build(path, pkg); err != nil {
			t.Fatal(err)
		}
	}
}

// build uses the settings of test/lane, which has compiled most of it.
func build(path, pkg string) error {
	cmd := exec.Command("go", "build", "-ldflags", "-s -w", "-o", path, pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", pkg, err, out)
	}
	return nil
}
