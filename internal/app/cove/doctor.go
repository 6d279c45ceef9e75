//go:build linux

package cove

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/app/host"
	"github.com/cove-sandbox/cove/internal/config"
	"github.com/cove-sandbox/cove/internal/proc"
	"github.com/cove-sandbox/cove/internal/surface/cli"
)

// finding is one result of doctor.
type finding struct {
	ok   bool
	what string
	fix  string // if it is not ok
	repair
}

func (v *verbs) doctor() *cobra.Command {
	var fix bool
	cmd := &cobra.Command{Use: "doctor", Short: "Check what this machine can do for sandboxes, and how to get what is missing", Args: cli.Arguments(0, 0),
		Long: "Check what this machine can do for sandboxes, and how to get what is missing. --fix does what can be done without a decision of yours: it installs packages, " +
			"loads kernel modules, enables user namespaces, closes the state folder to others and builds the Python environment. It prints each step first."}
	cmd.Flags().BoolVar(&fix, "fix", false, "Fix what can be fixed, as root")
	return withSettings(cmd, func(ctx context.Context, cfg config.Cove, _ []string) error {
		environ := config.Environ()
		usable, list := examine(ctx, cfg, environ)
		if fix && v.fix(ctx, &cfg, environ, list) {
			usable, list = examine(ctx, cfg, environ)
		}
		printFindings(v.std.Out, list)
		if !usable {
			return &cli.Error{Code: cli.ExitFailed, Msg: "this machine cannot run sandboxes"}
		}
		return nil
	})
}

func printFindings(w io.Writer, list []finding) {
	for _, f := range list {
		if f.ok {
			fmt.Fprintln(w, "ok       ", f.what)
			continue
		}
		fmt.Fprintf(w, "missing   %s\n          %s\n", f.what, f.fix)
	}
}

// examine checks what sandboxes need; usable reports whether any can run.
func examine(ctx context.Context, cfg config.Cove, environ []string) (usable bool, list []finding) {
	add := func(ok bool, what, fix string) { list = append(list, finding{ok: ok, what: what, fix: fix}) }
	var name unix.Utsname
	if unix.Uname(&name) == nil {
		add(true, "Linux "+unix.ByteSliceToString(name.Release[:]), "")
	}
	if os.Geteuid() == 0 {
		add(true, "root: every sandbox has its own users and all limits", "")
	} else {
		add(true, "no root: sandboxes have one user each, and limits only in a delegated cgroup", "")
	}
	list = append(list, examineKernel()...)
	list = append(list, examineState(cfg.State)...)
	if aio, err := findAio(cfg.Aio); err != nil {
		add(false, err.Error(), "run make build, or set --aio")
	} else {
		add(true, "sandbox server: "+aio, "")
		add(host.IsFile(markdownReader(aio)), "web pages as Markdown ("+filepath.Base(markdownReader(aio))+")", "it must be in the folder of aio: run make build")
		usable = tryProvider(ctx, cfg, add)
	}
	programs := proc.New(proc.Config{Env: environ})
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
		list = append(list, finding{ok, fmt.Sprintf("%s (%s)", p.brings, strings.Fields(p.programs)[0]), "not available in sandboxes without an image: apt-get install " + p.pkg, repair{pkg: p.pkg}})
	}
	ok, what, fix := venvFinding(cfg)
	list = append(list, finding{ok, what, fix, repair{venv: !ok}})
	return usable, list
}

// tryProvider runs a trial sandbox, in a temporary state folder.
func tryProvider(ctx context.Context, cfg config.Cove, add func(ok bool, what, fix string)) bool {
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
		add(false, err.Error(), "user namespaces and overlays are required: Linux 5.12 or later, kernel.unprivileged_userns_clone=1, and in a container --privileged or --security-opt seccomp=unconfined")
		return false
	}
	defer p.Close()
	a := p.Abilities()
	add(true, "a trial sandbox ran", "")
	for _, tier := range a.Tiers {
		add(true, "isolation "+tier, "")
	}
	if !slices.Contains(a.Isolation, "gvisor") {
		add(false, "isolation gvisor: a kernel of its own for each sandbox, in user space", "run as root, install runsc (scripts/deps gvisor builds it), and set --runsc if it is not in /usr/local/bin")
	}
	add(len(a.Limits) > 0, "limits: "+strings.Join(a.Limits, ", "), "")
	add(a.Pause, "pause and resume", "requires a cgroup with a freezer")
	add(a.PauseToDisk, "pause to disk, of sandboxes with isolation gvisor", "requires root and runsc; other sandboxes are paused in memory, or stopped, which keeps their disk only")
	for _, m := range a.Missing {
		add(false, m, "")
	}
	return true
}
