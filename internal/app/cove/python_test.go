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
)

// TestVenvIsBuiltOnce: the Python environment of sandboxes is built once, and the next start reuses it.
// The build reports its progress. If it fails, it leaves no files and the error says what to do.
func TestVenvIsBuiltOnce(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	testenv.Need(t, isolate.Python)
	var log bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&log, nil))
	cfg := config.Cove{State: filepath.Join(t.TempDir(), "state"), Venv: config.AutoVenv}
	venv := filepath.Join(cfg.State, "venv")
	environ := []string{"PATH=/usr/bin:/bin", "HOME=" + t.TempDir(), "PIP_NO_INDEX=1"}

	_, err := makeVenv(t.Context(), cfg, environ, []byte("no-such-package\n"), logger)
	if err == nil || !strings.Contains(err.Error(), "no-such-package") || !strings.Contains(err.Error(), "--venv none") {
		t.Errorf("a package that does not exist: got %v, want an error that names it and says what to do", err)
	}
	if left, _ := filepath.Glob(venv + "*"); len(left) > 0 {
		t.Errorf("after a failure: got %q, want nothing left", left)
	}

	built, err := makeVenv(t.Context(), cfg, environ, []byte("pip\n"), logger) // which is available
	if err != nil || built.Venv != venv {
		t.Fatalf("build: got %q, %v, want %s", built.Venv, err, venv)
	}
	if out, err := exec.Command(filepath.Join(venv, "bin", "python"), "-c", "import sys; print(sys.prefix)").
		Output(); err != nil || strings.TrimSpace(string(out)) != venv {
		t.Errorf("its Python: got %s, %v, want the prefix %s", out, err, venv)
	}
	if !strings.Contains(log.String(), "Requirement already satisfied: pip") ||
		!strings.Contains(log.String(), "the Python environment is ready") {
		t.Errorf("progress: got %s, want the steps of pip and the result", log.String())
	}
	// The next start finds it and does not build it again.
	log.Reset()
	found := config.Cove{State: cfg.State, Venv: config.AutoVenv, Listen: "127.0.0.1:0"}
	found.Complete(os.LookupEnv, func(key, format string, _ ...any) { t.Errorf("setting %s: %s", key, format) })
	if again, err := makeVenv(t.Context(), found, environ, nil, logger); err != nil || again.Venv != venv || log.Len() > 0 {
		t.Errorf("the next start: got %q, %v and log %q, want %s and an empty log", again.Venv, err, log.String(), venv)
	}
	if ok, what, _ := venvFinding(found); !ok || !strings.Contains(what, venv) {
		t.Errorf("doctor: got %v, %q, want it to name %s", ok, what, venv)
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
