// Package gvisor runs the program of a sandbox under gVisor: its command lines, and the
// description of a sandbox that it reads.
package gvisor

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/cove-sandbox/cove/internal/system/isolate"
	"github.com/cove-sandbox/cove/internal/system/isolate/control"
)

// The paths of gVisor's own files. Processes on its kernel see another /run, without them.
const (
	runscInside  = "/run/gvisor/runsc"
	bundleInside = "/run/gvisor/bundle"
	stateInside  = "/run/gvisor/state"
	imageInside  = "/run/gvisor/image"
	bundleFile   = "config.json"
	idInside     = "sandbox"
)

// Config says how to run a sandbox under gVisor.
type Config struct {
	Runsc  string // path of the program
	Bundle string // folder of this sandbox, which Wrap creates
	// OwnSocket says that the program creates control.ServerSocket. Such a program cannot be
	// saved. Otherwise the program serves at control.Door.
	OwnSocket bool
	// Image is the folder of a saved sandbox, and Spec the result of ReadSpec when it was saved.
	// Without Image the program is started.
	Image string
	Spec  []byte
}

// ReadSpec returns the description of a sandbox from its bundle.
func (g Config) ReadSpec() ([]byte, error) { return os.ReadFile(filepath.Join(g.Bundle, bundleFile)) }

// runscArgs returns the command line of runsc up to its verb.
func runscArgs(sockets string) []string {
	return []string{runscInside, "--root=" + stateInside, "--platform=systrap", "--network=host",
		"--host-uds=" + sockets, "--overlay2=none", "--ignore-cgroups"}
}

// keptNames lists the capabilities that root may have on gVisor's kernel. initprocess has the
// same list for other sandboxes.
var keptNames = []string{
	"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_SETGID",
	"CAP_SETUID", "CAP_SETPCAP", "CAP_NET_BIND_SERVICE", "CAP_SYS_CHROOT", "CAP_SETFCAP",
}

// Command returns a command about the running program of a sandbox, for its init.
func Command(verb string, args ...string) []string {
	return append(append(append(runscArgs("open"), verb), args...), idInside)
}

// Wrap puts gVisor between the program and the kernel: init starts runsc, which runs
// the program on gVisor's kernel, in user space. The rest of the sandbox is unchanged:
// the filesystem, the limits, the network namespace with only a loopback, and the user
// namespace, in which runsc is root. There runsc keeps the capabilities that it needs to
// isolate the program, and it installs its own filter of system calls instead of seccomp's.
//
// All other fields of cfg must be set. It requires root.
func Wrap(cfg *isolate.Config, g Config) error {
	if cfg.Listen != nil {
		return fmt.Errorf("isolate: gVisor cannot pass a listening socket to its program")
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
	// It contains the program's environment: only root inside may read it.
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
		isolate.Bind{Source: isolate.Dir{Path: g.Runsc}, Target: runscInside, ReadOnly: true},
		isolate.Bind{Source: isolate.Dir{Path: g.Bundle}, Target: bundleInside, ReadOnly: true})
	args := runscArgs("open")
	if g.OwnSocket {
		args = runscArgs("all")
	}
	if cfg.Setuid {
		args = append(args, "--allow-suid")
	}
	if g.Image == "" {
		args = append(args, "run", "--bundle="+bundleInside, idInside)
	} else {
		cfg.Binds = append(cfg.Binds, isolate.Bind{Source: isolate.Dir{Path: g.Image}, Target: imageInside, ReadOnly: true})
		args = append(args, "restore", "--bundle="+bundleInside, "--image-path="+imageInside, idInside)
	}
	cfg.Process = isolate.Process{Args: args, Env: []string{"PATH=/usr/bin:/bin"}, Dir: "/"}
	cfg.Runtime, cfg.Setuid = true, false
	return nil
}

// The used parts of an OCI runtime specification.
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
		Bounding  []string `json:"bounding"`
		Permitted []string `json:"permitted,omitempty"`
		Effective []string `json:"effective,omitempty"`
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

// ociSpec describes the program to gVisor. It uses the root that init has built; all files in
// memory, and all that are shared with others, are separate mounts.
func ociSpec(cfg *isolate.Config) oci {
	p := cfg.Process
	s := oci{Version: "1.0.2", Root: ociRoot{"/"}, Hostname: cfg.Hostname,
		Process: ociProcess{User: ociUser{p.UID, p.GID}, Args: p.Args, Env: p.Env, Cwd: p.Dir, NoNewPrivileges: !cfg.Setuid,
			Capabilities: ociCapabilities{Bounding: keptNames}},
		Mounts: []ociMount{
			{"/proc", "proc", "proc", nil},
			{"/sys", "sysfs", "sysfs", []string{"nosuid", "noexec", "nodev", "ro"}},
			{"/dev/shm", "tmpfs", "tmpfs", []string{"mode=1777", fmt.Sprintf("size=%d", max(cfg.ShmSize, 1<<20))}},
			// The default is a folder in memory, which snapshots do not include.
			{"/tmp", "bind", "/tmp", []string{"bind", "rw"}},
		},
		Linux: ociLinux{[]ociNamespace{{"pid"}, {"ipc"}, {"uts"}, {"mount"}}},
	}
	if p.UID == 0 { // the kernel would do this at execve; gVisor does not
		s.Process.Capabilities.Permitted, s.Process.Capabilities.Effective = keptNames, keptNames
	}
	if n := cfg.Limits.Files; n > 0 {
		s.Process.Rlimits = append(s.Process.Rlimits, ociRlimit{"RLIMIT_NOFILE", n, n})
	}
	for _, t := range cfg.Tmpfs {
		// The program's socket must be a socket of the host.
		if t.Target == filepath.Dir(control.ServerSocket) {
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
		// Others may change it: gVisor must not cache it like the root.
		s.Mounts = append(s.Mounts, ociMount{b.Target, "bind", b.Target, []string{"bind", access}})
	}
	if s.Process.Cwd == "" || !strings.HasPrefix(s.Process.Cwd, "/") {
		s.Process.Cwd = "/"
	}
	return s
}
