// Package pyenv builds Python environments: folders with an interpreter and packages. Programs that
// wait for an environment can read the progress in its folder.
package pyenv

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/system/proc"
)

// Package is the Debian package of the modules that a build requires.
const Package = "python3-venv"

// Fix says how to install it.
const Fix = "apt-get install " + Package

// Config describes an environment.
type Config struct {
	Runner *proc.Runner
	Python string // interpreter that it is based on
	// Dir is its folder, which is created if it does not exist. It may be mounted elsewhere: the
	// folder itself is never replaced.
	Dir string
	// Packages are the lines of a requirements file.
	Packages []byte
	Log      *slog.Logger
}

// Interpreter is the interpreter of an environment, which appears when the environment is complete.
func Interpreter(dir string) string { return filepath.Join(dir, "bin", "python") }

// IsComplete reports whether a folder has an environment.
func IsComplete(dir string) bool {
	_, err := os.Stat(Interpreter(dir))
	return err == nil
}

// IsWritable reports whether this program can build an environment in a folder, which may not exist.
func IsWritable(dir string) bool {
	for ; ; dir = filepath.Dir(dir) {
		err := unix.Access(dir, unix.W_OK)
		if err == nil || !errors.Is(err, unix.ENOENT) || dir == "/" || dir == "." {
			return err == nil
		}
	}
}

// Prepare creates the folder of an environment, with the folders that programs search for packages: a
// sandbox may see it through an overlay, which does not notice a folder that appears where it found none.
// Build does it, too. It refuses a folder with files of others, which the environment would replace.
func Prepare(ctx context.Context, c Config) error {
	if err := os.MkdirAll(c.Dir, 0o755); err != nil {
		return err
	}
	entries, err := os.ReadDir(c.Dir)
	if err != nil {
		return err
	}
	_, ours := ReadProgress(c.Dir)
	if len(entries) > 0 && !ours || IsComplete(c.Dir) {
		return fmt.Errorf("the folder %q is not empty; delete it, or select another one", c.Dir)
	}
	writeProgress(c.Dir, Progress{Step: "creating the environment"})
	site, err := Site(ctx, c.Runner, c.Python)
	if err == nil {
		err = os.MkdirAll(filepath.Join(c.Dir, site), 0o755)
	}
	if err != nil && ctx.Err() == nil {
		writeProgress(c.Dir, Progress{Failure: err.Error()})
	}
	return err
}

// Site returns the folder of packages in environments of an interpreter. It fails if the interpreter cannot
// create environments: Debian has the modules for that in another package.
func Site(ctx context.Context, runner *proc.Runner, python string) (string, error) {
	const question = "import ensurepip, sys, venv; print('lib/python%d.%d/site-packages' % sys.version_info[:2])"
	res, err := runner.Run(ctx, proc.Command{Path: python, Args: []string{"-c", question}, Dir: "/"})
	if err == nil && res.Exit.Code != 0 {
		err = fmt.Errorf("%s cannot create environments: its modules venv and ensurepip are missing; %s", python, Fix)
	}
	return strings.TrimSpace(string(res.Stdout)), err
}

// Build builds an environment. If it fails, its folder has the reason.
func Build(ctx context.Context, c Config) error {
	b := &build{Config: c, half: filepath.Join(c.Dir, ".new")}
	err := Prepare(ctx, c)
	if err == nil {
		err = errors.Join(b.run(ctx), os.RemoveAll(b.half))
		if err != nil && ctx.Err() == nil {
			writeProgress(c.Dir, Progress{Failure: err.Error()})
		}
	}
	if err != nil {
		return fmt.Errorf("build the Python environment: %w", err)
	}
	return nil
}

// build is a build in progress.
type build struct {
	Config
	half string // folder of the incomplete environment
}

func (b *build) run(ctx context.Context) error {
	if err := os.RemoveAll(b.half); err != nil { // of an interrupted build
		return err
	}
	if stderr, err := b.command(ctx, b.Python, "-m", "venv", b.half); err != nil {
		return fmt.Errorf("%w: %s", err, lastLine(stderr))
	}
	list := filepath.Join(b.half, "requirements.txt")
	if err := os.WriteFile(list, b.Packages, 0o644); err != nil {
		return err
	}
	stderr, err := b.command(ctx, Interpreter(b.half), "-m", "pip", "install", "--disable-pip-version-check",
		"--progress-bar", "off", "-r", list)
	if err != nil {
		return fmt.Errorf("install packages with pip: %w: %s; allow access to a package index such as pypi.org, or set PIP_INDEX_URL",
			err, lastLine(stderr))
	}
	if err := b.moveScripts(); err != nil {
		return err
	}
	return b.publish()
}

// command runs a program. If it fails, its error output is returned.
func (b *build) command(ctx context.Context, path string, args ...string) (stderr []byte, err error) {
	steps := &stepWriter{show: func(step string) {
		b.Log.Info("building the Python environment", "step", step)
		writeProgress(b.Dir, Progress{Step: step})
	}}
	res, err := b.Runner.Run(ctx, proc.Command{Path: path, Args: args, Dir: "/", Stdout: steps})
	if err == nil && res.Exit.Code != 0 {
		err = errors.New(res.Exit.String())
	}
	return res.Stderr, err
}

// moveScripts changes the paths in the programs of the environment to those of its final folder.
func (b *build) moveScripts() error {
	bin := filepath.Join(b.half, "bin")
	entries, err := os.ReadDir(bin)
	if err != nil {
		return err
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || !info.Mode().IsRegular() || info.Size() > 1<<20 {
			continue // a link to an interpreter, or a compiled program
		}
		path := filepath.Join(bin, e.Name())
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if bytes.IndexByte(text, 0) < 0 {
			text = bytes.ReplaceAll(text, []byte(b.half), []byte(b.Dir))
			if err := os.WriteFile(path, text, info.Mode().Perm()); err != nil {
				return err
			}
		}
	}
	return nil
}

// publish moves the complete environment to its folder: packages, the kernel last of them, then programs.
func (b *build) publish() error {
	sites, err := filepath.Glob(filepath.Join(b.half, "lib", "python*", "site-packages"))
	if err != nil || len(sites) != 1 {
		return fmt.Errorf("found %d folders of packages, %w", len(sites), err)
	}
	site, err := filepath.Rel(b.half, sites[0])
	if err != nil {
		return err
	}
	isKernel := func(name string) bool { return strings.HasPrefix(name, "ipykernel") }
	for _, move := range []struct {
		dir  string
		what func(name string) bool
	}{
		{site, func(name string) bool { return !isKernel(name) }},
		{site, isKernel},
		{".", func(name string) bool { return name != "lib" && name != "bin" }},
		{".", func(name string) bool { return name == "bin" }},
	} {
		if err := b.move(move.dir, move.what); err != nil {
			return err
		}
	}
	clearProgress(b.Dir)
	return nil
}

// move moves the selected entries of a folder.
func (b *build) move(dir string, what func(name string) bool) error {
	entries, err := os.ReadDir(filepath.Join(b.half, dir))
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !what(e.Name()) {
			continue
		}
		to := filepath.Join(b.Dir, dir, e.Name())
		if err := os.RemoveAll(to); err != nil { // of an interrupted build
			return err
		}
		if err := os.Rename(filepath.Join(b.half, dir, e.Name()), to); err != nil {
			return err
		}
	}
	return nil
}

// lastLine returns the last line of a text, in which programs say why they failed.
func lastLine(text []byte) string {
	lines := strings.Split(strings.ToValidUTF8(strings.TrimSpace(string(text)), "\uFFFD"), "\n")
	last := strings.TrimSpace(lines[len(lines)-1])
	return last[:min(len(last), 500)]
}

// stepWriter passes on the lines of a program's output.
type stepWriter struct {
	show func(string)
	rest []byte
}

// maxLine bounds a line.
const maxLine = 4096

func (w *stepWriter) Write(b []byte) (int, error) {
	w.rest = append(w.rest, b...)
	for {
		line, rest, ok := bytes.Cut(w.rest, []byte("\n"))
		if !ok {
			break
		}
		if line = bytes.TrimSpace(line); len(line) > 0 {
			w.show(strings.ToValidUTF8(string(line), "\uFFFD"))
		}
		w.rest = rest
	}
	if len(w.rest) > maxLine {
		w.rest = nil
	}
	return len(b), nil
}
