package cove

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/app/host"
	"github.com/cove-sandbox/cove/internal/config"
	"github.com/cove-sandbox/cove/internal/proc"
	"github.com/cove-sandbox/cove/internal/surface/cli"
)

// finding is one line of the doctor's.
type finding struct {
	good bool
	what string
	fix  string // when it is not good
}

func (v *verbs) doctor() *cobra.Command {
	cmd := &cobra.Command{Use: "doctor", Short: "Tell what this machine can do for sandboxes, and how to get what is missing", Args: cobra.NoArgs}
	flags := host.Flags(cmd, "cove", config.Fields(&config.Cove{}))
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		var cfg config.Cove
		if _, err := config.Load(&cfg, config.System("cove", flags())); err != nil {
			return &cli.Error{Code: cli.ExitUsage, Msg: err.Error()}
		}
		able, list := examine(cmd.Context(), cfg)
		for _, f := range list {
			if f.good {
				fmt.Fprintln(v.std.Out, "ok       ", f.what)
				continue
			}
			fmt.Fprintf(v.std.Out, "missing   %s\n          %s\n", f.what, f.fix)
		}
		if !able {
			return &cli.Error{Code: cli.ExitFailed, Msg: "sandboxes cannot be made here"}
		}
		return nil
	}
	return cmd
}

// examine tries out what sandboxes need; able says whether any can be made.
func examine(ctx context.Context, cfg config.Cove) (able bool, list []finding) {
	add := func(good bool, what, fix string) { list = append(list, finding{good, what, fix}) }
	var name unix.Utsname
	if unix.Uname(&name) == nil {
		add(true, "Linux "+unix.ByteSliceToString(name.Release[:]), "")
	}
	if os.Geteuid() == 0 {
		add(true, "root: every sandbox has users of its own and all limits", "")
	} else {
		add(true, "no root: sandboxes work with one user each, and limits only where a cgroup is delegated", "")
	}
	if aio, err := findAio(cfg.Aio); err != nil {
		add(false, err.Error(), "run make build, or give --aio")
	} else {
		add(true, "the program for sandboxes: "+aio, "")
		add(host.IsFile(reader(aio)), "web pages as Markdown ("+filepath.Base(reader(aio))+")", "it belongs in the folder of aio: run make build")
		able = tryProvider(ctx, cfg, add)
	}
	look := proc.New(proc.Config{Env: os.Environ()})
	for _, p := range []struct{ programs, brings, pkg string }{
		{"bash", "terminals", "bash"},
		{"chromium google-chrome chromium-browser", "a browser", "chromium"},
		{"Xtigervnc", "a desktop", "tigervnc-standalone-server"},
		{"openbox", "windows on the desktop", "openbox"},
		{"ffmpeg", "recordings of the desktop", "ffmpeg"},
		{"python3", "Python", "python3"},
		{"node", "JavaScript", "nodejs"},
		{"rg", "quick search in files", "ripgrep"},
		{"git", "git", "git"},
	} {
		_, ok := look.Look(strings.Fields(p.programs)...)
		add(ok, fmt.Sprintf("%s (%s)", p.brings, strings.Fields(p.programs)[0]), "sandboxes that use this machine's programs have none: apt-get install "+p.pkg)
	}
	add(cfg.Venv != "", "Python kernels ("+cfg.Venv+")", "make deps builds a Python environment; name it with --venv")
	return able, list
}

// tryProvider makes a sandbox that ends at once, on a state folder of its own.
func tryProvider(ctx context.Context, cfg config.Cove, add func(good bool, what, fix string)) bool {
	// On the same filesystem as the real one, which it may not be able to use.
	at := cfg.State
	for ; at != "/"; at = filepath.Dir(at) {
		if info, err := os.Stat(at); err == nil && info.IsDir() && unix.Access(at, unix.W_OK) == nil {
			break
		}
	}
	dir, err := os.MkdirTemp(at, "doctor-")
	if err != nil {
		add(false, "a state folder: "+err.Error(), "name one that can be written with --state")
		return false
	}
	defer os.RemoveAll(dir)
	cfg.State = dir
	p, err := openProvider(ctx, cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		add(false, err.Error(), "user namespaces and overlays are needed: Linux 5.12 or newer, kernel.unprivileged_userns_clone=1, and in a container --privileged or --security-opt seccomp=unconfined")
		return false
	}
	defer p.Close()
	a := p.Abilities()
	add(true, "sandboxes by namespaces; a trial one ran", "")
	add(len(a.Limits) > 0, "limits: "+strings.Join(a.Limits, ", "), "")
	add(a.Pause, "pause and resume", "a cgroup with a freezer is needed")
	for _, m := range a.Missing {
		add(false, m, "")
	}
	return true
}
