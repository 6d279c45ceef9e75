//go:build linux

package cove

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/app/host"
	"github.com/cove-sandbox/cove/internal/config"
	"github.com/cove-sandbox/cove/internal/sandbox"
	"github.com/cove-sandbox/cove/internal/surface/cli"
	"github.com/cove-sandbox/cove/internal/system/isolate"
	"github.com/cove-sandbox/cove/internal/system/proc"
	"github.com/cove-sandbox/cove/internal/system/pyenv"
)

// finding is one result of doctor.
type finding struct {
	ok   bool
	what string
	fix  string // if it is not ok
	repair
}

// Finding is one result of doctor, as a hub shows it.
type Finding struct {
	OK   bool   `json:"ok" doc:"Whether it is available"`
	What string `json:"what" doc:"What was checked"`
	Fix  string `json:"fix" doc:"How to get it; empty if it is available or cannot be had here"`
}

// doctorOp shows the findings about the hub's machine, which administrators need not sign in to.
func (h *Hub) doctorOp() op.Op {
	return op.New(op.Spec{Name: "hub_doctor", Route: "GET /api/v1/hub/doctor", Tag: "hub", Verb: "examine",
		Access: op.AccessAdmin, ReadOnly: true, Columns: []string{"ok", "what", "fix"},
		Doc: "Show what cove doctor finds on the hub's machine: what sandboxes can do there, and how to get what " +
			"is missing. Starts no sandbox."}, h.Doctor)
}

// Doctor examines the hub's machine.
func (h *Hub) Doctor(ctx context.Context, _ op.None) ([]Finding, error) {
	_, list := examine(ctx, h.cfg, config.Environ(), func(add adder) bool {
		addAbilities(h.provider.Abilities(), add)
		return true
	})
	out := make([]Finding, len(list))
	for i, f := range list {
		if out[i] = (Finding{OK: f.ok, What: f.what}); !f.ok {
			out[i].Fix = f.fix
		}
	}
	return out, ctx.Err()
}

func (v machineVerbs) doctor() *cobra.Command {
	var fix bool
	cmd := &cobra.Command{Use: "doctor",
		Short: "Check what this machine, or a cluster, can do for sandboxes, and how to get what is missing", Args: cli.Arguments(0, 0),
		Long: "Check what the running hub can do for sandboxes, or this machine if no hub answers or a setting is given. --fix does what can " +
			"be done without a decision of yours: it installs packages, " +
			"loads kernel modules, enables user namespaces, closes the state folder to others and builds the " +
			"Python environment. It prints each step first. " +
			"With --provider kubernetes, it checks the cluster instead: whether its API server answers, your " +
			"rights, Pod Security, user namespaces, RuntimeClasses and the snapshot store. It changes nothing " +
			"there, except for one small object that it writes into the store and deletes."}
	cmd.Flags().BoolVar(&fix, "fix", false, "Fix what can be fixed, as root")
	return withSettings(cmd, doctorSettings, func(ctx context.Context, cfg config.Cove, _ []string) error {
		environ := config.Environ()
		if !fix && !examinesMachine(cmd) {
			if found, err := v.doctorOfHub(ctx); found {
				return err
			}
		}
		try := func(add adder) bool { return tryProvider(ctx, cfg, add) }
		usable, list := examine(ctx, cfg, environ, try)
		if fix && v.fix(ctx, &cfg, environ, list) {
			usable, list = examine(ctx, cfg, environ, try)
		}
		printFindings(v.Std.Out, list)
		if !usable {
			return &cli.Error{Code: cli.ExitFailed, Msg: whereOf(cfg) + " cannot run sandboxes"}
		}
		return nil
	})
}

// examinesMachine reports whether a setting was given: it applies to this machine, not to the running hub.
func examinesMachine(cmd *cobra.Command) (given bool) {
	cmd.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) { given = given || f.Changed })
	return given
}

// hubTimeout bounds how long doctor waits for the hub.
const hubTimeout = 10 * time.Second

// doctorOfHub prints what the running hub finds on its machine, with its user and settings. found is false if there is no hub, or
// it does not show its findings to this caller.
func (v machineVerbs) doctorOfHub(ctx context.Context) (found bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, hubTimeout)
	defer cancel()
	c, err := v.Dial()
	if err != nil {
		return false, nil // examine this machine instead
	}
	defer c.Close()
	info, err := c.Info(ctx)
	if err != nil {
		fmt.Fprintf(v.Text.Out, "no hub    at %s (%v): examining this machine\n", v.Address(), err)
		return false, nil
	}
	fmt.Fprintf(v.Text.Out, "hub       %s, version %s\n", v.Address(), cli.Line(info.Version))
	var list []Finding
	if err := c.Call(ctx, http.MethodGet, "/api/v1/hub/doctor", nil, &list); err != nil {
		fmt.Fprintf(v.Text.Out, "          shows its findings to administrators only (%v): examining this machine\n", err)
		return false, nil
	}
	findings := make([]finding, len(list))
	for i, f := range list {
		findings[i] = finding{ok: f.OK, what: cli.Line(f.What), fix: cli.Line(f.Fix)}
	}
	printFindings(v.Text.Out, findings)
	if info.EnvironmentsFault != "" {
		return true, &cli.Error{Code: cli.ExitFailed, Msg: "environments: " + info.EnvironmentsFault}
	}
	return true, nil
}

// advise returns what to do in a checkout of the repository, or with an installed package.
func advise(source, installed string) string {
	if dir := host.Beside("cove"); dir != "" && host.IsFile(filepath.Join(filepath.Dir(filepath.Dir(dir)), "go.mod")) {
		return source
	}
	return installed
}

func printFindings(w io.Writer, list []finding) {
	for _, f := range list {
		if f.ok {
			fmt.Fprintln(w, "ok       ", f.what)
			continue
		}
		fmt.Fprintln(w, "missing  ", f.what)
		if f.fix != "" {
			fmt.Fprintln(w, "         ", f.fix)
		}
	}
}

// whereOf is what runs the sandboxes.
func whereOf(cfg config.Cove) string {
	if cfg.Provider == "kubernetes" {
		return "this cluster"
	}
	return "this machine"
}

// adder adds a finding.
type adder func(ok bool, what, fix string)

// examine checks what sandboxes need; usable reports whether any can run. provider adds what the
// provider of sandboxes can do, and reports the same of it. For Kubernetes, it checks the cluster, not this machine.
func examine(ctx context.Context, cfg config.Cove, environ []string, provider func(adder) bool) (usable bool, list []finding) {
	add := func(ok bool, what, fix string) { list = append(list, finding{ok: ok, what: what, fix: fix}) }
	if cfg.Provider == "kubernetes" {
		list = append(list, examineState(cfg.State)...)
		usable = examineKubernetes(ctx, cfg, add)
		return usable, list
	}
	var name unix.Utsname
	if unix.Uname(&name) == nil {
		add(true, "Linux "+unix.ByteSliceToString(name.Release[:]), "")
	}
	if os.Geteuid() == 0 {
		add(true, "root: every sandbox has its own users", "")
	} else {
		add(true, "no root: sandboxes have one user each", "")
	}
	list = append(list, examineKernel()...)
	list = append(list, examineState(cfg.State)...)
	if aio, err := findAio(cfg.Aio); err != nil {
		add(false, err.Error(), "")
	} else {
		add(true, "sandbox server: "+aio, "")
		add(host.IsFile(markdownReader(aio)), "web pages as Markdown ("+filepath.Base(markdownReader(aio))+")",
			"it must be in the folder of aio: "+advise("run make build", "reinstall the package"))
		usable = provider(add)
	}
	programs := proc.New(proc.Config{Env: environ})
	defer programs.Close()
	for _, p := range []struct{ programs, brings, pkg string }{
		{"bash", "terminals", "bash"},
		{"chromium google-chrome chromium-browser", "a browser", "chromium"},
		{"Xtigervnc", "a desktop", "tigervnc-standalone-server"},
		{"openbox", "windows on the desktop", "openbox"},
		{"ffmpeg", "recordings of the desktop", "ffmpeg"},
		{"python3", "Python", "python3"},
		{"node", "JavaScript", "nodejs"},
		{"rg", "fast search in files", "ripgrep"},
		{"git", "git", "git"},
	} {
		_, ok := programs.Look(strings.Fields(p.programs)...)
		list = append(list, finding{ok, fmt.Sprintf("%s (%s)", p.brings, strings.Fields(p.programs)[0]),
			"not available in sandboxes without an image: apt-get install " + p.pkg, repair{pkg: p.pkg}})
	}
	_, err := pyenv.Site(ctx, programs, isolate.Python)
	list = append(list, finding{err == nil, "Python environments (" + pyenv.Package + ")",
		"sandboxes without an image cannot install a Python kernel: " + pyenv.Fix, repair{pkg: pyenv.Package}})
	ok, what, fix := venvFinding(cfg)
	list = append(list, finding{ok, what, fix, repair{venv: !ok}})
	return usable, list
}

// tryProvider runs a trial sandbox, in a temporary state folder.
func tryProvider(ctx context.Context, cfg config.Cove, add adder) bool {
	// On the filesystem of the real one, which may be unsuitable.
	at := cfg.State
	for ; at != "/"; at = filepath.Dir(at) {
		if info, err := os.Stat(at); err == nil && info.IsDir() && unix.Access(at, unix.W_OK) == nil {
			break
		}
	}
	dir, err := os.MkdirTemp(at, "doctor-")
	if err != nil {
		add(false, "state folder: "+err.Error(), "set --state to a writable folder")
		return false
	}
	defer os.RemoveAll(dir)
	cfg.State = dir
	p, err := openProvider(ctx, cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		add(false, err.Error(), "user namespaces and overlays are required: Linux 5.12 or later, "+
			"kernel.unprivileged_userns_clone=1, and in a container --privileged or --security-opt seccomp=unconfined")
		return false
	}
	defer p.Close()
	add(true, "a trial sandbox ran", "")
	addAbilities(p.Abilities(), add)
	return true
}

// addAbilities adds what a provider can do.
func addAbilities(a sandbox.Abilities, add adder) {
	for _, tier := range a.Tiers {
		add(true, "isolation "+tier, "")
	}
	if !slices.Contains(a.Isolation, "gvisor") {
		add(false, "isolation gvisor: a separate user-space kernel for each sandbox",
			"run as root, install runsc"+advise(" (scripts/deps gvisor builds it)", "")+", and set --runsc if it is not in /usr/local/bin")
	}
	if len(a.Limits) > 0 {
		add(true, "limits: "+strings.Join(a.Limits, ", "), "")
	} else {
		add(false, "limits of CPU, memory and processes", "run the hub as root, or where a cgroup is delegated: "+
			"systemd-run --user --scope -p Delegate=yes cove hub")
	}
	add(a.Pause, "pause and resume", "requires a cgroup with a freezer")
	add(a.PauseToDisk, "pause to disk, of sandboxes with isolation gvisor",
		"requires root and runsc; other sandboxes are paused in memory, or stopped, which keeps their disk only")
	for _, m := range a.Missing {
		add(false, m, "")
	}
}
