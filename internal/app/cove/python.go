//go:build linux

package cove

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/cove-sandbox/cove/internal/app/host"
	"github.com/cove-sandbox/cove/internal/config"
	"github.com/cove-sandbox/cove/internal/system/isolate"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

// requirements are the Python packages that sandboxes have.
//
//go:embed requirements.txt
var requirements []byte

// makeVenv builds the Python environment of the state directory, with the packages that
// sandboxes have, if the settings ask for one that does not exist. It returns the settings with
// its path. It takes a minute, once.
func makeVenv(ctx context.Context, cfg config.Cove, environ []string, packages []byte, log *slog.Logger) (config.Cove, error) {
	if cfg.Venv != config.AutoVenv {
		return cfg, nil
	}
	cfg.Venv = filepath.Join(cfg.State, "venv")
	half := cfg.Venv + ".new"
	if err := errors.Join(os.MkdirAll(cfg.State, 0o700), os.RemoveAll(half)); err != nil {
		return cfg, err
	}
	list := filepath.Join(cfg.State, "requirements.txt")
	if err := os.WriteFile(list, packages, 0o644); err != nil {
		return cfg, err
	}
	runner := proc.New(proc.Config{Env: environ, Log: log})
	defer runner.Close()
	log.Info("building the Python environment of sandboxes, once", "path", cfg.Venv)
	for _, args := range [][]string{
		{isolate.Python, "-m", "venv", half},
		{filepath.Join(half, "bin", "python"), "-m", "pip", "install", "--disable-pip-version-check", "--progress-bar", "off", "-r", list},
	} {
		res, err := runner.Run(ctx, proc.Command{Path: args[0], Args: args[1:], Dir: "/", Stdout: &lineLog{log: log}})
		if err == nil && res.Exit.Code != 0 {
			err = fmt.Errorf("%v: %s", res.Exit, bytes.TrimSpace(res.Stderr))
		}
		if err != nil {
			return cfg, fmt.Errorf("build the Python environment: %w; on Debian it needs the package python3-venv and access to a package index; "+
				"without Python packages in sandboxes, use --venv none", errors.Join(err, os.RemoveAll(half)))
		}
	}
	if err := os.Rename(half, cfg.Venv); err != nil {
		return cfg, err
	}
	log.Info("the Python environment is ready", "path", cfg.Venv)
	return cfg, nil
}

// lineLog logs the lines of a program's output.
type lineLog struct {
	log  *slog.Logger
	rest []byte
}

// maxProgress bounds a line.
const maxProgress = 4096

func (p *lineLog) Write(b []byte) (int, error) {
	p.rest = append(p.rest, b...)
	for {
		line, rest, ok := bytes.Cut(p.rest, []byte("\n"))
		if !ok {
			break
		}
		p.log.Info("building the Python environment", "step", string(bytes.TrimSpace(line)))
		p.rest = rest
	}
	if len(p.rest) > maxProgress {
		p.rest = nil
	}
	return len(b), nil
}

// venvFinding says in doctor whether sandboxes have Python packages.
func venvFinding(cfg config.Cove) (ok bool, what, fix string) {
	ok = cfg.Venv != "" && host.IsFile(filepath.Join(cfg.Venv, "bin", "python"))
	return ok, "Python packages (" + cfg.Venv + ")", "run make deps, or start the hub with --venv " +
		config.AutoVenv + ", which builds an environment once"
}
