package isolate

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Where gVisor's own files are. A process inside sees another /run, without them.
const (
	runscInside  = "/run/gvisor/runsc"
	bundleInside = "/run/gvisor/bundle"
	stateInside  = "/run/gvisor/state"
	imageInside  = "/run/gvisor/image"
	bundleFile   = "config.json"
	idInside     = "sandbox"
)

// GVisor says how to run a sandbox under gVisor.
type GVisor struct {
	Runsc  string // path of the program
	Bundle string // a folder that is created, for this sandbox alone
	// OwnSocket says that the program makes the unix socket that it is reached by. It cannot
	// be saved then. Otherwise it serves at Door.
	OwnSocket bool
	// Image is the folder of a saved sandbox, and Spec what SpecOf returned then. Empty: the program starts.
	Image string
	Spec  []byte
}

// SpecOf returns what describes a sandbox to gVisor, from its bundle.
func (g GVisor) SpecOf() ([]byte, error) { return os.ReadFile(filepath.Join(g.Bundle, bundleFile)) }

// gvisorArgs is the command line of runsc up to its verb.
func gvisorArgs(sockets string) []string {
	return []string{runscInside, "--root=" + stateInside, "--platform=systrap", "--network=host",
		"--host-uds=" + sockets, "--overlay2=none", "--ignore-cgroups"}
}

// keptNames are the capabilities in kept, which root may have on gVisor's kernel, too.
var keptNames = []string{
	"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_SETGID",
	"CAP_SETUID", "CAP_SETPCAP", "CAP_NET_BIND_SERVICE", "CAP_SYS_CHROOT", "CAP_SETFCAP",
}

// gvisorCommand is a command about the program that runs.
func gvisorCommand(verb string, args ...string) []string {
	return append(append(append(gvisorArgs("open"), verb), args...), idInside)
}

// UseGVisor puts gVisor between the program and the kernel: init starts runsc, which runs
// the program on a kernel of its own, in user space. Everything around it stays as it is:
// the filesystem, the limits, the network namespace with only a loopback, and a user
// namespace in which runsc is root and outside which it is nobody. In it runsc keeps the
// capabilities that it needs to build its own walls, and no filter of ours: it has its own.
//
// Everything else in cfg must be complete. It needs root.
func UseGVisor(cfg *Config, g GVisor) error {
	if cfg.Listen != nil {
		return fmt.Errorf("isolate: gVisor cannot hand a socket to its program")
	}
	spec := g.Spec
	if g.Image == "" {
		var err error
		if spec, err = json.Marshal(ociSpec(cfg)); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(g.Bundle, 0o700); err != nil {
		return err
	}
	// Only root inside may read it, and it has no more than the program's environment.
	name := filepath.Join(g.Bundle, bundleFile)
	if err := os.WriteFile(name, spec, 0o600); err != nil {
		return err
	}
	for _, p := range []string{g.Bundle, name} {
		if err := os.Lchown(p, int(cfg.IDs.Base), int(cfg.IDs.Base)); err != nil {
			return err
		}
	}
	cfg.Binds = append(cfg.Binds,
		Bind{Source: Dir{Path: g.Runsc}, Target: runscInside, ReadOnly: true},
		Bind{Source: Dir{Path: g.Bundle}, Target: bundleInside, ReadOnly: true})
	args := gvisorArgs("open")
	if g.OwnSocket {
		args = gvisorArgs("all")
	}
	if cfg.Setuid {
		args = append(args, "--allow-suid")
	}
	if g.Image == "" {
		args = append(args, "run", "--bundle="+bundleInside, idInside)
	} else {
		cfg.Binds = append(cfg.Binds, Bind{Source: Dir{Path: g.Image}, Target: imageInside, ReadOnly: true})
		args = append(args, "restore", "--bundle="+bundleInside, "--image-path="+imageInside, idInside)
	}
	cfg.Process = Process{Args: args, Env: []string{"PATH=/usr/bin:/bin"}, Dir: "/"}
	cfg.Runtime, cfg.Setuid = true, false
	return nil
}

// The parts of an OCI runtime specification that we use.
type (
	ociMount struct {
		Destination string   `json:"destination"`
		Type        string   `json:"type"`
		Source      string   `json:"source"`
		Options     []string `json:"options,omitempty"`
	}
	ociUser struct {
		UID uint32 `json:"uid"`
		GID uint32 `json:"gid"`
	}
	ociCapabilities struct {
		Bounding []string `json:"bounding"`
	}
	ociRlimit struct {
		Type string `json:"type"`
		Hard int64  `json:"hard"`
		Soft int64  `json:"soft"`
	}
	ociProcess struct {
		User            ociUser         `json:"user"`
		Args            []string        `json:"args"`
		Env             []string        `json:"env"`
		Cwd             string          `json:"cwd"`
		NoNewPrivileges bool            `json:"noNewPrivileges"`
		Capabilities    ociCapabilities `json:"capabilities"`
		Rlimits         []ociRlimit     `json:"rlimits,omitempty"`
	}
	ociRoot struct {
		Path string `json:"path"`
	}
	ociNamespace struct {
		Type string `json:"type"`
	}
	ociLinux struct {
		Namespaces []ociNamespace `json:"namespaces"`
	}
	oci struct {
		Version  string     `json:"ociVersion"`
		Process  ociProcess `json:"process"`
		Root     ociRoot    `json:"root"`
		Hostname string     `json:"hostname"`
		Mounts   []ociMount `json:"mounts"`
		Linux    ociLinux   `json:"linux"`
	}
)

// ociSpec describes the program to gVisor: it uses our root, and everything in memory or shared with others is a separate mount.
func ociSpec(cfg *Config) oci {
	p := cfg.Process
	s := oci{Version: "1.0.2", Root: ociRoot{"/"}, Hostname: cfg.Hostname,
		Process: ociProcess{User: ociUser{p.UID, p.GID}, Args: p.Args, Env: p.Env, Cwd: p.Dir, NoNewPrivileges: !cfg.Setuid,
			Capabilities: ociCapabilities{keptNames}},
		Mounts: []ociMount{
			{"/proc", "proc", "proc", nil},
			{"/sys", "sysfs", "sysfs", []string{"nosuid", "noexec", "nodev", "ro"}},
			{"/dev/shm", "tmpfs", "tmpfs", []string{"mode=1777", fmt.Sprintf("size=%d", max(cfg.ShmSize, 1<<20))}},
			// It would get a folder in memory otherwise, which no snapshot has.
			{"/tmp", "bind", "/tmp", []string{"bind", "rw"}},
		},
		Linux: ociLinux{[]ociNamespace{{"pid"}, {"ipc"}, {"uts"}, {"mount"}}},
	}
	if n := cfg.Limits.Files; n > 0 {
		s.Process.Rlimits = append(s.Process.Rlimits, ociRlimit{"RLIMIT_NOFILE", n, n})
	}
	for _, t := range cfg.Tmpfs {
		// A socket that the program serves must be one of the host's.
		if t.Target == filepath.Dir(ServerSocket) {
			s.Mounts = append(s.Mounts, ociMount{t.Target, "bind", t.Target, []string{"bind", "rw"}})
			continue
		}
		s.Mounts = append(s.Mounts, ociMount{t.Target, "tmpfs", "tmpfs", []string{
			fmt.Sprintf("mode=%o", t.Mode), fmt.Sprintf("uid=%d", t.UID), fmt.Sprintf("gid=%d", t.GID), fmt.Sprintf("size=%d", t.Size)}})
	}
	for _, b := range cfg.Binds {
		access := "rw"
		if b.ReadOnly {
			access = "ro"
		}
		// Others may change it meanwhile: it must not be cached like the root.
		s.Mounts = append(s.Mounts, ociMount{b.Target, "bind", b.Target, []string{"bind", access}})
	}
	if s.Process.Cwd == "" || !strings.HasPrefix(s.Process.Cwd, "/") {
		s.Process.Cwd = "/"
	}
	return s
}
