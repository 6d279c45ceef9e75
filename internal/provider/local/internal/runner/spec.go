package runner

import (
	"cmp"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cove-sandbox/cove/internal/provider/local/internal/disk"
	"github.com/cove-sandbox/cove/internal/provider/local/internal/socket"
	"github.com/cove-sandbox/cove/internal/sandbox"
	"github.com/cove-sandbox/cove/internal/system/isolate"
	"github.com/cove-sandbox/cove/internal/system/isolate/control"
	"github.com/cove-sandbox/cove/internal/system/isolate/hostroot"
)

// Kinds of isolation: namespaces, or namespaces with a kernel in user space.
const (
	Namespaces = "namespaces"
	GVisor     = "gvisor"
)

// Isolations lists the supported kinds of isolation. The default is first.
func (r *Runner) Isolations() []string {
	if r.cfg.Runsc == "" || rootless() {
		return []string{Namespaces}
	}
	return []string{Namespaces, GVisor}
}

// Check returns ErrInvalid or ErrUnsupported for a spec that cannot run here.
func (r *Runner) Check(spec sandbox.Spec) error {
	if err := spec.Validate(); err != nil {
		return err
	}
	switch {
	case spec.Isolation != "" && !slices.Contains(r.Isolations(), spec.Isolation):
		return fmt.Errorf("%w: isolation %q; use %s", sandbox.ErrUnsupported, spec.Isolation, strings.Join(r.Isolations(), " or "))
	case spec.Root && rootless():
		return fmt.Errorf("%w: a server that runs as root inside; run the hub as root", sandbox.ErrUnsupported)
	case spec.Image != "" && !r.disks.HasImages():
		return fmt.Errorf("%w: images; omit the image to use this machine's programs", sandbox.ErrUnsupported)
	case spec.Image == "" && spec.Snapshot == "" && len(spec.Command) == 0 && len(r.cfg.Command) == 0:
		return fmt.Errorf("%w: a command is required", sandbox.ErrInvalid)
	}
	return nil
}

// defaults complete specs.
type defaults struct {
	command      []string
	commandEnv   map[string]string
	doorEnv      string
	env          map[string]string
	hostEnv      map[string]string // of sandboxes without an image
	resources    sandbox.Resources
	readyTimeout time.Duration
}

// baseEnv is the environment of every sandbox.
var baseEnv = map[string]string{
	"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": isolate.Home, "USER": isolate.User,
	"LOGNAME": isolate.User, "SHELL": "/bin/bash", "LANG": "C.UTF-8", "XDG_RUNTIME_DIR": "/run/user/1000",
	// Packages that the user installs without sudo are stored in the home, also in images.
	"NPM_CONFIG_PREFIX": isolate.Home + "/.local", "PIP_BREAK_SYSTEM_PACKAGES": "1",
}

// hostEnv makes programs with their own list of certificate authorities trust the authorities of the host, which its
// administrator may have extended.
func hostEnv() map[string]string {
	bundle := hostroot.Certificates()
	if bundle == "" {
		return nil
	}
	return map[string]string{"SSL_CERT_FILE": bundle, "REQUESTS_CA_BUNDLE": bundle, "NODE_EXTRA_CA_CERTS": bundle}
}

// envWorkspace is the folder in which the server inside runs commands and resolves relative paths.
const envWorkspace = "WORKSPACE"

// Additional folders of programs: those that users install, and those of every sandbox.
const (
	userPrograms = isolate.Home + "/.local/bin"
	ownPrograms  = isolate.Programs
)

// completePath adds these folders to a PATH. Programs that users installed take precedence.
func completePath(path string) string {
	list := filepath.SplitList(path)
	for _, dir := range []string{ownPrograms, userPrograms} {
		if !slices.Contains(list, dir) {
			list = append([]string{dir}, list...)
		}
	}
	return strings.Join(list, ":")
}

// complete returns a spec with the defaults of the image and the provider.
func (d defaults) complete(spec sandbox.Spec, from *disk.Image) sandbox.Spec {
	spec = spec.Clone()
	img := disk.Image{Command: d.command, Env: d.hostEnv}
	if from != nil {
		img = *from
		// The program of an image runs only if the spec has its port; otherwise the default server runs.
		if len(img.Command) == 0 || spec.Server.Port == 0 && len(d.command) > 0 {
			img.Command = d.command
		}
	}
	r := &spec.Resources
	r.CPU = cmp.Or(r.CPU, d.resources.CPU)
	r.CPULimit = cmp.Or(r.CPULimit, d.resources.CPULimit)
	r.MemoryLimit = cmp.Or(r.MemoryLimit, max(d.resources.MemoryLimit, r.Memory))
	r.Pids = cmp.Or(r.Pids, d.resources.Pids)
	r.Files = cmp.Or(r.Files, d.resources.Files)
	r.Disk = cmp.Or(r.Disk, d.resources.Disk)
	r.DiskRate = cmp.Or(r.DiskRate, d.resources.DiskRate)
	spec.Server.ReadyTimeout = cmp.Or(spec.Server.ReadyTimeout, d.readyTimeout)
	spec.Server.ReadyPath = cmp.Or(spec.Server.ReadyPath, "/readyz?needed=true")
	if len(spec.Command) == 0 {
		spec.Command = slices.Clone(img.Command)
	}
	env := maps.Clone(baseEnv)
	for _, more := range []map[string]string{img.Env, d.env, spec.Env} {
		maps.Copy(env, more)
	}
	if _, set := env[envWorkspace]; !set && (spec.Workdir != "" || img.Workdir != "" && img.Workdir != "/") {
		env[envWorkspace] = cmp.Or(spec.Workdir, img.Workdir)
	}
	spec.Workdir = cmp.Or(spec.Workdir, img.Workdir, isolate.Home)
	if spec.Env["PATH"] == "" {
		env["PATH"] = completePath(env["PATH"])
	}
	// gVisor does not pass sockets to programs.
	if slices.Equal(spec.Command, d.command) && spec.Server.Port == 0 && spec.Isolation != GVisor && !overlap(env, d.commandEnv) {
		maps.Copy(env, d.commandEnv)
	}
	if d.usesDoor(spec) {
		env[d.doorEnv] = control.Door + "/" + control.DoorWord
	}
	env[sandbox.EnvEgress] = "unix:" + socket.EgressPath
	env[sandbox.EnvListen] = "unix:" + socket.ServerPath
	if spec.Server.Port != 0 {
		env[sandbox.EnvListen] = fmt.Sprintf("tcp:127.0.0.1:%d", spec.Server.Port)
	}
	spec.Env = env
	return spec
}

func overlap(a, b map[string]string) bool {
	for k := range b {
		if _, ok := a[k]; ok {
			return true
		}
	}
	return false
}

// passesSocket reports whether the program of a completed spec inherits the socket of its server.
func (d defaults) passesSocket(spec sandbox.Spec) bool {
	for k, v := range d.commandEnv {
		if spec.Env[k] != v {
			return false
		}
	}
	return len(d.commandEnv) > 0 && spec.Isolation != GVisor && spec.Server.Port == 0 && slices.Equal(spec.Command, d.command)
}

// usesDoor reports whether the program of a spec serves at control.Door. Other programs under gVisor create a socket,
// which gVisor cannot save.
func (d defaults) usesDoor(spec sandbox.Spec) bool {
	return d.doorEnv != "" && spec.Isolation == GVisor && spec.Server.Port == 0 && slices.Equal(spec.Command, d.command)
}

func limits(r sandbox.Resources) isolate.Limits {
	return isolate.Limits{CPU: r.CPULimit, Share: r.CPU, Memory: r.MemoryLimit, Pids: r.Pids, Files: r.Files, FileSize: r.Disk}
}

func environ(spec sandbox.Spec) []string {
	env := make([]string, 0, len(spec.Env))
	for k, v := range spec.Env {
		env = append(env, k+"="+v)
	}
	return env
}
