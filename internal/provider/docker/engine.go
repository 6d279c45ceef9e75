package docker

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/moby/client"

	"github.com/cove-sandbox/cove/internal/filesystem/atomicfile"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// askEngine returns what sandboxes of this engine can do.
func (r *runner) askEngine(ctx context.Context) (sandbox.Abilities, error) {
	if _, err := r.engine.Ping(ctx, client.PingOptions{NegotiateAPIVersion: true}); err != nil {
		return sandbox.Abilities{}, fmt.Errorf("connect to the Docker engine at %s: %w; start it, or set its socket", r.engine.DaemonHost(), err)
	}
	got, err := r.engine.Info(ctx, client.InfoOptions{})
	if err != nil {
		return sandbox.Abilities{}, fmt.Errorf("ask the Docker engine: %w", err)
	}
	info := got.Info
	version, err := r.engine.ServerVersion(ctx, client.ServerVersionOptions{})
	if err != nil {
		return sandbox.Abilities{}, fmt.Errorf("ask the Docker engine for its version: %w", err)
	}
	product, isPodman := productOf(version)
	if r.security, err = r.securityOptions(isPodman); err != nil {
		return sandbox.Abilities{}, fmt.Errorf("write the seccomp profile: %w", err)
	}
	if info.OSType != "" && info.OSType != "linux" {
		return sandbox.Abilities{}, fmt.Errorf("the Docker engine runs %s containers; Linux is required", info.OSType)
	}
	a := sandbox.Abilities{Provider: "docker", Pause: true, Stop: true, AnyPort: true, Image: true, Volume: true, Egress: true,
		Logs: true, Stats: true, Snapshot: true, Fork: true, Diff: true, Isolation: []string{Kind},
		Limits: []string{"files"}, MaxMemory: info.MemTotal}
	for name, has := range map[string]bool{"cpu": info.CPUCfsQuota, "memory": info.MemoryLimit, "pids": info.PidsLimit} {
		if has {
			a.Limits = append(a.Limits, name)
		} else {
			a.Missing = append(a.Missing, "the engine cannot limit "+name+" on this machine")
		}
	}
	slices.Sort(a.Limits)
	tier := "container: programs reach neither the host nor other sandboxes and have no network but the hub's " +
		"proxy; they share the host's kernel, so a bug in it that they can reach is a way out; engine: " + product
	if !slices.ContainsFunc(info.SecurityOptions, func(s string) bool {
		return strings.Contains(s, "name=userns") || strings.Contains(s, "name=rootless")
	}) {
		a.Missing = append(a.Missing, "root inside a sandbox is root of the host without most of its capabilities; "+
			"set userns-remap in the configuration of a Docker engine to map it to another user")
	}
	a.Tiers = []string{tier}
	a.Missing = append(a.Missing, "disk limits are not enforced", "a sandbox cannot be exported as an image",
		"a sandbox cannot be paused to disk: pause keeps its processes in memory, stop keeps its disk only")
	slices.Sort(a.Missing)
	return a, nil
}

// podman is the component of an engine that is Podman.
const podman = "Podman Engine"

// productOf returns the engine's name and version, and whether it is Podman.
func productOf(v client.ServerVersionResult) (name string, isPodman bool) {
	for _, c := range v.Components {
		if c.Name == podman {
			return podman + " " + c.Version, true
		}
	}
	return "Docker Engine " + v.Version, false
}

// securityOptions are those of all containers. Podman reads seccomp profiles from files only and has an option for masked paths,
// whose field it ignores; Docker refuses both. Nothing but the name tells.
func (r *runner) securityOptions(isPodman bool) (options []string, err error) {
	profile := r.cfg.Seccomp
	if isPodman {
		options = append(options, "mask="+strings.Join(masked, ":"))
	}
	if profile != "" && isPodman {
		profile = filepath.Join(r.cfg.Dir, seccompName)
		err = atomicfile.Replace(profile, atomicfile.Options{Perm: 0o600}, func(f *os.File) error {
			_, err := f.WriteString(r.cfg.Seccomp)
			return err
		})
	}
	if profile != "" {
		options = append(options, "seccomp="+profile)
	}
	return options, err
}
