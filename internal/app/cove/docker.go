//go:build linux

package cove

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"path/filepath"

	"github.com/cove-sandbox/cove/deploy"
	"github.com/cove-sandbox/cove/internal/app/host"
	"github.com/cove-sandbox/cove/internal/config"
	"github.com/cove-sandbox/cove/internal/provider/docker"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// Image is that of sandboxes on an engine, if the configuration names none; make image
// builds it.
const Image = "cove-sandbox:latest"

// openDocker opens the provider of sandboxes on a Docker engine.
func openDocker(ctx context.Context, cfg config.Cove, aio string, log *slog.Logger) (sandbox.Provider, error) {
	first := host.Beside("cove-container")
	if first == "" {
		return nil, errors.New("no cove-container program next to this one; " + advise("build it with make build", "reinstall the package"))
	}
	c := docker.Config{
		Dir: filepath.Join(cfg.State, "docker"), Host: cmp.Or(cfg.DockerHost, "unix:///var/run/docker.sock"),
		Programs: map[string]string{"aio": aio, "cove-container": first}, Command: []string{aioInside, "serve"},
		Env:      map[string]string{"AIO_LOG_LEVEL": "warn", "AIO_CONTAINED": "true", "AIO_LOOPBACK": "127.0.0.1:8080"},
		Image:    cmp.Or(cfg.DefaultImage, Image),
		Defaults: sandbox.Resources{MemoryLimit: int64(cfg.MemoryLimit)}, Seccomp: deploy.Seccomp, Log: log,
	}
	if reader := markdownReader(aio); host.IsFile(reader) {
		c.Programs[filepath.Base(reader)] = reader
	}
	p, err := docker.Open(ctx, c)
	if err != nil {
		return nil, err // not a nil pointer in an interface
	}
	return p, nil
}
