//go:build linux

package cove

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/cove-sandbox/cove/internal/config"
	"github.com/cove-sandbox/cove/internal/system/isolate"
	"github.com/cove-sandbox/cove/internal/system/proc"
	"github.com/cove-sandbox/cove/internal/system/pyenv"
)

// requirements are the Python packages that sandboxes have.
//
//go:embed requirements.txt
var requirements []byte

// startVenv builds the Python environment of the state directory in the background, with the
// packages that sandboxes have, if the settings ask for one that does not exist. It returns the
// settings with its path. Sandboxes see its progress, and the environment when it is complete. stop ends the build.
func startVenv(ctx context.Context, cfg config.Cove, environ []string, packages []byte,
	log *slog.Logger) (_ config.Cove, stop func(), err error) {
	if cfg.Venv != config.AutoVenv {
		return cfg, func() {}, nil
	}
	cfg.Venv = builtVenv(cfg)
	if err := errors.Join(os.MkdirAll(cfg.State, 0o700), os.MkdirAll(cfg.Venv, 0o755)); err != nil {
		return cfg, nil, err
	}
	c := newVenv(cfg, environ, packages, log)
	_ = pyenv.Prepare(ctx, c) // before sandboxes exist; buildVenv reports the error
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer c.Runner.Close()
		if err := buildVenv(ctx, c); err != nil && ctx.Err() == nil {
			log.Error("sandboxes have no Python packages; the next start tries again", "error", err)
		}
	}()
	return cfg, func() { cancel(); <-done }, nil
}

// newVenv describes the environment that this program builds. The caller closes its Runner.
func newVenv(cfg config.Cove, environ []string, packages []byte, log *slog.Logger) pyenv.Config {
	return pyenv.Config{Runner: proc.New(proc.Config{Env: environ, Log: log}), Python: isolate.Python, Dir: builtVenv(cfg),
		Packages: packages, Log: log}
}

// buildVenv builds the Python environment of sandboxes. It takes a minute, once.
func buildVenv(ctx context.Context, c pyenv.Config) error {
	c.Log.Info("building the Python environment of sandboxes, once", "path", c.Dir)
	if err := pyenv.Build(ctx, c); err != nil {
		return fmt.Errorf("%w; without Python packages in sandboxes, use --venv none", err)
	}
	c.Log.Info("the Python environment is ready", "path", c.Dir)
	return nil
}

// builtVenv is the path of the environment that this program builds.
func builtVenv(cfg config.Cove) string { return filepath.Join(cfg.State, "venv") }

// venvFinding says in doctor whether sandboxes have Python packages.
func venvFinding(cfg config.Cove) (ok bool, what, fix string) {
	dir := cfg.Venv
	if dir == "" || dir == config.AutoVenv {
		dir = builtVenv(cfg)
	}
	what = "Python packages (" + dir + ")"
	if pyenv.IsComplete(dir) {
		return true, what, ""
	}
	switch p, building := pyenv.ReadProgress(dir); {
	case p.Failure != "":
		return false, what, p.Failure
	case building:
		return false, what, "the hub is installing them: " + p.Step
	}
	return false, what, "each sandbox without an image installs a Python kernel on first use; to share packages, " +
		advise("run make deps, or ", "install python3-venv, and ") + "start the hub with --venv " + config.AutoVenv
}
