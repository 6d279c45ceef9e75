package cove

import (
	"bytes"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/internal/config"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/system/isolate"
	"github.com/cove-sandbox/cove/internal/system/pyenv"
)

// TestVenvIsBuiltOnce: the Python environment of sandboxes is built once, and the next start reuses it.
// The build reports its progress.
func TestVenvIsBuiltOnce(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	testenv.Need(t, isolate.Python)
	var log bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&log, nil))
	cfg := config.Cove{State: filepath.Join(t.TempDir(), "state"), Venv: config.AutoVenv}
	venv := filepath.Join(cfg.State, "venv")
	environ := []string{"PATH=/usr/bin:/bin", "HOME=" + t.TempDir(), "PIP_NO_INDEX=1"}

	built, stop, err := startVenv(t.Context(), cfg, environ, []byte("pip\n"), logger) // which is available
	if err != nil || built.Venv != venv {
		t.Fatalf("build: got %q, %v, want %s", built.Venv, err, venv)
	}
	testenv.Poll(t, "the environment", func() bool { return pyenv.IsComplete(venv) })
	stop()
	if out, err := exec.Command(filepath.Join(venv, "bin", "python"), "-c", "import sys; print(sys.prefix)").
		Output(); err != nil || strings.TrimSpace(string(out)) != venv {
		t.Errorf("its Python: got %s, %v, want the prefix %s", out, err, venv)
	}
	if !strings.Contains(log.String(), "Requirement already satisfied: pip") {
		t.Errorf("progress: got %s, want the steps of pip", log.String())
	}
	// The next start finds it and does not build it again.
	log.Reset()
	found := config.Cove{State: cfg.State, Venv: config.AutoVenv, Listen: "127.0.0.1:0"}
	found.Complete(os.LookupEnv, func(key, format string, _ ...any) { t.Errorf("setting %s: %s", key, format) })
	again, stop, err := startVenv(t.Context(), found, environ, nil, logger)
	if err != nil || again.Venv != venv || log.Len() > 0 {
		t.Fatalf("the next start: got %q, %v and log %q, want %s and an empty log", again.Venv, err, log.String(), venv)
	}
	stop()
	if ok, what, _ := venvFinding(found); !ok || !strings.Contains(what, venv) {
		t.Errorf("doctor: got %v, %q, want it to name %s", ok, what, venv)
	}
}

// TestHubStartsWithoutVenv: a hub whose machine cannot build the environment starts, and doctor says why.
func TestHubStartsWithoutVenv(t *testing.T) {
	t.Parallel()
	testenv.Need(t, isolate.Python)
	modules := t.TempDir() // as on Debian without the package python3-venv
	if err := os.WriteFile(filepath.Join(modules, "ensurepip.py"), []byte("raise ImportError\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	cfg := config.Cove{State: filepath.Join(t.TempDir(), "state"), Venv: config.AutoVenv}
	cfg, stop, err := startVenv(t.Context(), cfg, []string{"PYTHONPATH=" + modules}, requirements, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	if info, err := os.Stat(cfg.Venv); err != nil || !info.IsDir() {
		t.Errorf("got %v, want a folder for sandboxes", err)
	}
	const want = "apt-get install python3-venv"
	testenv.Poll(t, "doctor says "+want, func() bool {
		ok, _, fix := venvFinding(cfg)
		return !ok && strings.Contains(fix, want)
	})
}

// TestDoctorShowsTheBuild: while the hub builds the environment, doctor says how far it is.
func TestDoctorShowsTheBuild(t *testing.T) {
	t.Parallel()
	testenv.Need(t, isolate.Python)
	cfg := config.Cove{State: filepath.Join(t.TempDir(), "state"), Venv: config.AutoVenv}
	environ := []string{"PATH=/usr/bin:/bin", "HOME=" + t.TempDir(), "PIP_NO_INDEX=1"}
	cfg, stop, err := startVenv(t.Context(), cfg, environ, requirements, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	ok, what, step := venvFinding(cfg)
	if ok || !strings.Contains(what, cfg.Venv) || !strings.HasPrefix(step, "the hub is installing them: c") {
		t.Errorf("during the build: got %v, %q and %q, want the step", ok, what, step)
	}
}

// TestRequirementsArePinned: every hub builds the same environment.
func TestRequirementsArePinned(t *testing.T) {
	t.Parallel()
	for line := range strings.Lines(string(requirements)) {
		if name, version, ok := strings.Cut(strings.TrimSpace(line), "=="); !ok || name == "" || version == "" {
			t.Errorf("requirement %q: want a name and an exact version", line)
		}
	}
}
