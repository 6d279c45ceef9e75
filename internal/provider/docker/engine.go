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

// queryEngine returns the abilities of sandboxes on this engine.
func (r *runner) queryEngine(ctx context.Context) (sandbox.Abilities, error) {
	if _, err := r.engine.Ping(ctx, client.PingOptions{NegotiateAPIVersion: true}); err != nil {
		return sandbox.Abilities{}, fmt.Errorf("connect to the Docker engine at %s: %w; start it or set its socket", r.engine.DaemonHost(), err)
	}
	got, err := r.engine.Info(ctx, client.InfoOptions{})
	if err != nil {
		return sandbox.Abilities{}, fmt.Errorf("query the Docker engine: %w", err)
	}
	info := got.Info
	version, err := r.engine.ServerVersion(ctx, client.ServerVersionOptions{})
	if err != nil {
		return sandbox.Abilities{}, fmt.Errorf("query the version of the Docker engine: %w", err)
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
			a.Missing = append(a.Missing, name+" limits: not supported by the engine on this machine")
		}
	}
	slices.Sort(a.Limits)
	tier := "container: programs cannot reach the host or other sandboxes. Their only network is the hub's " +
		"proxy. They share the host's kernel: a reachable kernel bug allows escape. Engine: " + product
	if !slices.ContainsFunc(info.SecurityOptions, func(s string) bool {
		return strings.Contains(s, "name=userns") || strings.Contains(s, "name=rootless")
	}) {
		a.Missing = append(a.Missing, "user namespaces: root inside a sandbox is root of the host without most of its capabilities; "+
			"set userns-remap in the configuration of a Docker engine to map it to another user")
	}
	a.Tiers = []string{tier}
	a.Missing = append(a.Missing, "disk limits: not enforced", "export: a sandbox cannot be exported as an image",
		"pause to disk: pause keeps processes in memory, and stop keeps only the disk")
	slices.Sort(a.Missing)
	return a, nil
}

// podman is the name of the component that identifies Podman.
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

// securityOptions returns the options of all containers. Podman reads seccomp profiles only from files, and requires an
// option for masked paths, because it ignores their field. Docker rejects both, so the product name decides.
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
