//go:build linux

package cove

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/cove-sandbox/cove/internal/app/host"
	"github.com/cove-sandbox/cove/internal/config"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

// repair is what doctor --fix does about a finding; the zero value: nothing.
type repair struct {
	pkg    string // Debian package to install
	module string // kernel module to load
	sysctl string // file below /proc/sys, and its value
	closed string // folder to close to others
	venv   bool   // build the Python environment
}

// userNamespaces is how many user namespaces the kernel allows; each sandbox needs one.
const userNamespaces = "user/max_user_namespaces"

// examineKernel checks what sandboxes need of the kernel beyond what a trial sandbox shows.
func examineKernel() (list []finding) {
	known, err := os.ReadFile("/proc/filesystems")
	if err != nil {
		return nil
	}
	for _, m := range []struct{ name, use string }{{"overlay", "for disks of sandboxes"},
		{"btrfs", "for fast snapshots and forks, and enforced disk limits, if the hub is root"}} {
		ok := strings.Contains(string(known), "\t"+m.name+"\n")
		list = append(list, finding{ok, fmt.Sprintf("kernel module %s, %s", m.name, m.use),
			"load the kernel module: modprobe " + m.name, repair{module: m.name}})
	}
	if b, err := os.ReadFile("/proc/sys/" + userNamespaces); err == nil && strings.TrimSpace(string(b)) == "0" {
		list = append(list, finding{false, "user namespaces",
			"they are disabled: sysctl user.max_user_namespaces=65536", repair{sysctl: userNamespaces + "=65536"}})
	}
	return list
}

// examineState checks that other users cannot enter the state folder.
func examineState(dir string) []finding {
	info, err := os.Stat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // the hub creates it
	}
	ok := err == nil && info.IsDir() && info.Mode().Perm()&0o077 == 0
	return []finding{{ok, "state folder, closed to other users (" + dir + ")", "run chmod 700 " + dir, repair{closed: dir}}}
}

// fix repairs what is missing, as far as it can, and reports whether it did anything. What
// fails is printed, and shows in the findings again.
func (v machineVerbs) fix(ctx context.Context, cfg *config.Cove, environ []string, list []finding) (acted bool) {
	runner := proc.New(proc.Config{Env: append(environ, "DEBIAN_FRONTEND=noninteractive")})
	defer runner.Close()
	step := func(says string, do func() error) {
		acted = true
		fmt.Fprintln(v.Std.Out, "fixing   ", says)
		if err := do(); err != nil {
			fmt.Fprintln(v.Std.Out, "failed   ", err)
		}
	}
	command := func(words ...string) {
		step(strings.Join(words, " "), func() error { return runCommand(ctx, runner, words) })
	}
	var packages []string
	for _, f := range list {
		switch r := f.repair; {
		case f.ok:
		case r.pkg != "":
			packages = append(packages, r.pkg)
		case r.module != "":
			command("modprobe", r.module)
		case r.sysctl != "":
			name, value, _ := strings.Cut(r.sysctl, "=")
			step("sysctl "+strings.ReplaceAll(name, "/", ".")+"="+value,
				func() error { return os.WriteFile("/proc/sys/"+name, []byte(value), 0o644) })
		case r.closed != "":
			step("chmod 700 "+r.closed, func() error { return os.Chmod(r.closed, 0o700) })
		}
	}
	if len(packages) > 0 {
		command("apt-get", "update", "-q")
		command(append([]string{"apt-get", "install", "-y", "-q", "--no-install-recommends"}, packages...)...)
	}
	for _, f := range list {
		if !f.ok && f.venv {
			step("building the Python environment of sandboxes, which takes a minute", func() error {
				c := newVenv(*cfg, environ, requirements, host.Log("error", "text", v.Std.Err))
				defer c.Runner.Close()
				err := buildVenv(ctx, c)
				if err == nil {
					cfg.Venv = c.Dir
				}
				return err
			})
		}
	}
	return acted
}

// runCommand runs a program of this machine to its end.
func runCommand(ctx context.Context, runner *proc.Runner, words []string) error {
	path, ok := runner.Look(words[0])
	if !ok {
		return fmt.Errorf("%s is not installed; do what it would do with the tools of this system", words[0])
	}
	res, err := runner.Run(ctx, proc.Command{Path: path, Args: words[1:], Dir: "/"})
	if err == nil && res.Exit.Code != 0 {
		err = fmt.Errorf("%s: %v: %s", words[0], res.Exit, bytes.TrimSpace(res.Stderr))
	}
	return err
}
