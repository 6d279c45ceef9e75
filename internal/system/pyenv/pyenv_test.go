package pyenv

import (
	"context"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// wheel creates a package with one module.
func wheel(t *testing.T) string {
	t.Helper()
	return testenv.Wheel(t, "thing.py", "answer = 42\n")
}

func newConfig(t *testing.T, dir, packages string, env ...string) Config {
	t.Helper()
	testenv.Need(t, "/usr/bin/python3")
	r := proc.New(proc.Config{Env: append([]string{"PATH=/usr/bin:/bin", "HOME=" + t.TempDir(), "PIP_NO_INDEX=1"}, env...)})
	t.Cleanup(func() { r.Close() })
	return Config{Runner: r, Python: "/usr/bin/python3", Dir: dir, Packages: []byte(packages), Log: slog.New(slog.DiscardHandler)}
}

func TestBuild(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "state", "venv")
	err := Build(t.Context(), newConfig(t, dir, "no-such-package\n"))
	if err == nil || !strings.Contains(err.Error(), "no-such-package") || !strings.Contains(err.Error(), "package index") {
		t.Errorf("a package that does not exist: got %v, want an error that names it and says what to do", err)
	}
	if p, ok := ReadProgress(dir); !ok || p.Failure == "" || !strings.Contains(err.Error(), p.Failure) || IsComplete(dir) {
		t.Errorf("after a failure: got %+v, want the error, and no environment", p)
	}
	if err := Build(t.Context(), newConfig(t, dir, wheel(t)+"\n")); err != nil {
		t.Fatalf("the next build: %v", err)
	}
	out, err := exec.Command(Interpreter(dir), "-c", "import sys, thing; print(sys.prefix, thing.answer)").CombinedOutput()
	if want := dir + " 42\n"; err != nil || string(out) != want {
		t.Errorf("its Python: got %q, %v, want %q", out, err, want)
	}
	out, err = exec.Command(filepath.Join(dir, "bin", "pip"), "--version").CombinedOutput()
	if err != nil || !strings.Contains(string(out), dir) {
		t.Errorf("its pip: got %q, %v, want it to run from %s", out, err, dir)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".*")); len(left) > 0 {
		t.Errorf("got %q, want no temporary files left", left)
	}
}

// TestBuildNeedsVenv: Debian has the modules in another package.
func TestBuildNeedsVenv(t *testing.T) {
	t.Parallel()
	modules := t.TempDir()
	if err := os.WriteFile(filepath.Join(modules, "ensurepip.py"), []byte("raise ImportError\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "venv")
	err := Build(t.Context(), newConfig(t, dir, "", "PYTHONPATH="+modules))
	if err == nil || !strings.Contains(err.Error(), "apt-get install python3-venv") {
		t.Errorf("got %v, want an error with the command that installs it", err)
	}
}

func TestBuildKeepsOtherFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "bin")
	if err := os.WriteFile(file, []byte("mine"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := Build(t.Context(), newConfig(t, dir, "")); err == nil || !strings.Contains(err.Error(), "not empty") {
		t.Errorf("got %v, want an error that the folder is not empty", err)
	}
	if b, err := os.ReadFile(file); string(b) != "mine" {
		t.Errorf("the file: got %q, %v, want it unchanged", b, err)
	}
}

// TestProgressIsWrittenInPlace: a sandbox sees the folder through an overlay, which does not notice that a file or a folder
// was replaced.
func TestProgressIsWrittenInPlace(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "venv")
	c := newConfig(t, dir, wheel(t)+"\n")
	if err := Prepare(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	progress, err := os.Open(filepath.Join(dir, progressName))
	if err != nil {
		t.Fatal(err)
	}
	defer progress.Close()
	sites, err := filepath.Glob(filepath.Join(dir, "lib/python3.*/site-packages"))
	if err != nil || len(sites) != 1 {
		t.Fatalf("got %q, %v, want a folder for packages", sites, err)
	}
	site, err := os.Open(sites[0])
	if err != nil {
		t.Fatal(err)
	}
	defer site.Close()
	if err := Build(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(progress); err != nil || !strings.Contains(string(b), `"done":true`) {
		t.Errorf("the file: got %q, %v, want the end of the build", b, err)
	}
	if names, err := site.Readdirnames(-1); err != nil || !slices.Contains(names, "thing.py") {
		t.Errorf("the folder: got %q, %v, want thing.py", names, err)
	}
}

func TestCanceledBuildIsNoFailure(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "venv")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	c := newConfig(t, dir, wheel(t)+"\n")
	if err := Build(ctx, c); err == nil {
		t.Error("got no error, want one")
	}
	if p, _ := ReadProgress(dir); p.Failure != "" {
		t.Errorf("got the failure %q, want none", p.Failure)
	}
	if err := Build(t.Context(), c); err != nil {
		t.Errorf("the next build: %v", err)
	}
}
