package docker

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	engine "github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"github.com/cove-sandbox/cove/internal/sandbox"
	"github.com/cove-sandbox/cove/internal/system/containerinit"
	"github.com/cove-sandbox/cove/internal/system/isolate"
	"github.com/cove-sandbox/cove/internal/system/isolate/control"
)

// runner manages the lifecycle of containers.
type runner struct {
	*session
	volumes  *volumes
	exits    exits
	security []string // options of all containers, in the format of the engine
}

// engineTimeout bounds one call to the engine, which can be slow on a busy machine.
const engineTimeout = 5 * time.Minute

// steady returns a context for calls that must not be canceled: the engine could still execute them after the
// cancellation.
func steady(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), engineTimeout)
}

// makeContainer creates the container of the next generation, without starting it.
func (r *runner) makeContainer(ctx context.Context, b *box, src source) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	call, cancel := steady(ctx)
	defer cancel()
	sb := b.rec.Sandbox
	stored := sandbox.Sandbox{ID: sb.ID, Spec: sb.Spec, Created: sb.Created}
	stored.Spec.Env = nil // it may contain secrets; engines show labels and copy them into images of snapshots
	label, err := json.Marshal(stored)
	if err != nil {
		return err
	}
	origin, err := json.Marshal(src.Base)
	if err != nil {
		return err
	}
	cfg := &engine.Config{
		Image: src.Image, Hostname: sb.Spec.Name, WorkingDir: "/",
		Entrypoint: []string{filepath.Join(isolate.Programs, initProgram)}, Cmd: []string{},
		StopSignal: "SIGTERM",
		Labels: map[string]string{labelHub: r.instance, labelID: sb.ID, labelName: sb.Spec.Name,
			labelOwner: sb.Spec.Owner, labelSandbox: string(label), labelBase: string(origin)},
	}
	if src.Base.Checked { // only then, because Podman creates a systemd timer even for no check
		cfg.Healthcheck = &engine.HealthConfig{Test: []string{"NONE"}}
	}
	if r.switchesUser(sb.Spec, src.Base) {
		cfg.User = "0:0" // the first process switches to the user of the sandbox
	}
	made, err := r.engine.ContainerCreate(call, client.ContainerCreateOptions{Config: cfg,
		HostConfig: r.hostConfig(b), Name: containerName(sb.ID, b.rec.Generation)})
	if err != nil {
		return fmt.Errorf("create container: %w", explain(err))
	}
	b.rec.Container = made.ID
	return nil
}

// explain adds the error code for callers, and advice, to an error of the engine.
func explain(err error) error {
	switch {
	case strings.Contains(err.Error(), "bind source path does not exist"):
		return fmt.Errorf("%w; the engine must see the hub's state folder at the same path", err)
	case errdefs.IsInvalidArgument(err):
		return fmt.Errorf("%w: %w", sandbox.ErrInvalid, err)
	}
	return err
}

// capabilities are the capabilities of root inside: package managers and sudo require them.
var capabilities = []string{"CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP",
	"SETFCAP", "SYS_CHROOT", "NET_BIND_SERVICE", "AUDIT_WRITE"}

// masked are the paths that a container cannot read: those that engines mask by default, and others that describe the
// whole machine.
var masked = []string{
	"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
	"/proc/sched_debug", "/proc/scsi", "/proc/timer_list", "/proc/timer_stats",
	"/sys/devices/virtual/powercap", "/sys/firmware",
	"/proc/buddyinfo", "/proc/cmdline", "/proc/locks", "/proc/pressure", "/proc/schedstat", "/proc/softirqs", "/proc/vmstat", "/proc/zoneinfo",
}

// Sizes of tmpfs mounts.
const (
	shmSize    = 1 << 30 // Chromium needs much; it counts towards the memory limit
	socketSize = 1 << 20
)

func (r *runner) hostConfig(b *box) *engine.HostConfig {
	spec := b.rec.Sandbox.Spec
	h := &engine.HostConfig{
		// Programs inside are not root of the network, which belongs to the first process.
		Sysctls:     map[string]string{"net.ipv4.ip_unprivileged_port_start": "0"},
		NetworkMode: "none", CapDrop: []string{"ALL"}, CapAdd: capabilities, ShmSize: shmSize,
		Resources: r.resources(spec), MaskedPaths: masked, SecurityOpt: slices.Clone(r.security),
		LogConfig: engine.LogConfig{Type: "json-file", Config: map[string]string{"max-size": "1m", "max-file": "2"}},
		Tmpfs: map[string]string{filepath.Dir(control.ServerSocket): fmt.Sprintf("rw,nosuid,nodev,noexec,size=%d,mode=%s",
			socketSize, r.socketMode(b))},
		Mounts: []mount.Mount{
			{Type: mount.TypeBind, Source: filepath.Join(r.cfg.Dir, binName), Target: isolate.Programs, ReadOnly: true},
			{Type: mount.TypeBind, Source: filepath.Join(b.dir, hubName), Target: containerinit.HubDir, ReadOnly: true},
			{Type: mount.TypeBind, Source: filepath.Join(b.dir, controlName), Target: containerinit.ControlDir},
		},
	}
	if spec.NoRoot {
		h.SecurityOpt = append(h.SecurityOpt, "no-new-privileges")
	}
	for _, v := range spec.Volumes {
		h.Mounts = append(h.Mounts, mount.Mount{Type: mount.TypeVolume, Source: r.volumes.name(spec.Owner, v.Name),
			Target: v.Target, ReadOnly: v.ReadOnly,
			VolumeOptions: &mount.VolumeOptions{NoCopy: true}})
	}
	return h
}

// socketMode returns the mode of the folder of the server's socket. It belongs to root until the first process changes
// the owner, because not every engine supports owners of tmpfs mounts.
func (r *runner) socketMode(b *box) string {
	if r.switchesUser(b.rec.Sandbox.Spec, b.rec.Base) {
		return "0755"
	}
	return "1777" // the first process runs as the user of the image
}

// resources returns the limits that the engine enforces. The first process limits open files, because Podman would
// additionally set a limit that the machine may forbid.
func (r *runner) resources(spec sandbox.Spec) engine.Resources {
	want, d := spec.Resources, r.cfg.Defaults
	memory := cmp.Or(want.MemoryLimit, max(d.MemoryLimit, want.Memory))
	pids := cmp.Or(want.Pids, d.Pids)
	return engine.Resources{
		CPUShares: cmp.Or(want.CPU, d.CPU) * 1024 / 1000, NanoCPUs: cmp.Or(want.CPULimit, d.CPULimit) * 1_000_000,
		Memory: memory, MemorySwap: memory, MemoryReservation: want.Memory, PidsLimit: &pids,
	}
}

// command returns what runs: the command of the spec, the program of the image if the spec has a server port, or the
// default. SwitchUser reports whether it runs as the user of sandboxes.
func (r *runner) command(spec sandbox.Spec, from base) (command []string, switchUser bool) {
	switch {
	case len(spec.Command) > 0:
		command, switchUser = spec.Command, true
	case spec.Server.Port == 0 && len(r.cfg.Command) > 0 || len(from.Command) == 0:
		command, switchUser = r.cfg.Command, true
	default:
		command = from.Command
	}
	return slices.Concat(command, spec.Args), switchUser
}

// switchesUser reports whether the program runs as the user of sandboxes.
func (r *runner) switchesUser(spec sandbox.Spec, from base) bool {
	_, switchUser := r.command(spec, from)
	return switchUser
}

// baseEnv is the environment of every sandbox.
func baseEnv() map[string]string {
	return map[string]string{
		"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"LANG": "C.UTF-8",
	}
}

// userEnv is the environment of programs that run as the user of sandboxes.
func userEnv() map[string]string {
	return map[string]string{
		"HOME": isolate.Home, "USER": isolate.User, "LOGNAME": isolate.User,
		// Packages that the user installs without sudo are stored in the home.
		"NPM_CONFIG_PREFIX": isolate.Home + "/.local", "PIP_BREAK_SYSTEM_PACKAGES": "1",
	}
}

// writePlan writes the plan of the first process.
func (r *runner) writePlan(b *box) error {
	spec, from := b.rec.Sandbox.Spec, b.rec.Base
	command, switchUser := r.command(spec, from)
	env := baseEnv()
	image := map[string]string{}
	for _, pair := range from.Env {
		k, v, _ := strings.Cut(pair, "=")
		image[k] = v
	}
	layers := []map[string]string{image, r.cfg.Env, spec.Env}
	if switchUser {
		layers = append([]map[string]string{userEnv()}, layers...)
	}
	for _, more := range layers {
		maps.Copy(env, more)
	}
	if spec.Env["PATH"] == "" {
		env["PATH"] = strings.Join([]string{isolate.Home + "/.local/bin", isolate.Programs, env["PATH"]}, ":")
	}
	workdir := cmp.Or(spec.Workdir, from.Workdir)
	if _, set := env["WORKSPACE"]; !set && workdir != "" && workdir != "/" {
		env["WORKSPACE"] = workdir
	}
	if switchUser {
		workdir = cmp.Or(workdir, isolate.Home)
	}
	env[sandbox.EnvEgress] = "unix:" + filepath.Join(containerinit.HubDir, containerinit.EgressName)
	env[sandbox.EnvListen] = "unix:" + control.ServerSocket
	if spec.Server.Port != 0 {
		env[sandbox.EnvListen] = fmt.Sprintf("tcp:127.0.0.1:%d", spec.Server.Port)
	}
	plan := containerinit.Plan{Command: command, Workdir: workdir, SwitchUser: switchUser,
		Files: uint64(cmp.Or(spec.Resources.Files, r.cfg.Defaults.Files))}
	for _, k := range slices.Sorted(maps.Keys(env)) {
		plan.Env = append(plan.Env, k+"="+env[k])
	}
	plan.Volumes = []string{filepath.Dir(control.ServerSocket)}
	for _, v := range spec.Volumes {
		if !v.ReadOnly {
			plan.Volumes = append(plan.Volumes, v.Target)
		}
	}
	// The program can run as any user, so all users may read the plan.
	return writeJSON(filepath.Join(b.dir, hubName, containerinit.PlanName), 0o644, plan)
}

func (r *runner) removeFiles(ctx context.Context, b *box) error {
	call, cancel := steady(ctx)
	defer cancel()
	names := []string{containerName(b.rec.Sandbox.ID, b.rec.Generation)}
	if b.rec.Container != "" {
		names = append(names, b.rec.Container)
	}
	for _, name := range names {
		if err := r.removeContainer(call, name); err != nil {
			return err
		}
	}
	if err := os.RemoveAll(b.dir); err != nil {
		return fmt.Errorf("remove the folder of the sandbox: %w", err)
	}
	return nil
}

// removePause is the pause between attempts to remove a container that is being removed.
const removePause = 20 * time.Millisecond

// removeContainer removes a container and returns when it does not exist.
func (r *runner) removeContainer(ctx context.Context, name string) error {
	for {
		_, err := r.engine.ContainerRemove(ctx, name, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
		switch {
		case err == nil, errdefs.IsNotFound(err):
			return nil
		case !errdefs.IsConflict(err):
			return fmt.Errorf("remove container: %w", err)
		}
		select { // another removal is in progress
		case <-ctx.Done():
			return fmt.Errorf("remove container: %w", err)
		case <-time.After(removePause):
		}
	}
}
