package kernel

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/proc"
)

const (
	// probeTime bounds the question to one interpreter.
	probeTime = 15 * time.Second
	// maxSpecFile bounds a kernel.json.
	maxSpecFile = 1 << 20
	// pythonName is the kernel that is found without a specification.
	pythonName = "python3"
)

// ErrNoPython says that no Python on this machine has ipykernel.
var ErrNoPython = errors.New("no Python with ipykernel found; install it: pip install ipykernel, or the Debian package python3-ipykernel")

// FindConfig says where to look for kernels.
type FindConfig struct {
	Runner *proc.Runner
	// Env is the environment that kernels will have; its PATH, HOME,
	// JUPYTER_PATH, JUPYTER_DATA_DIR and XDG_DATA_HOME say where to look. Nil: the
	// runner's.
	Env []string
	// Venv is a virtual environment whose Python is preferred. Empty: none.
	Venv string
	// System are the machine's data folders: /usr/local/share/jupyter and
	// /usr/share/jupyter when nil.
	System []string
	Log    *slog.Logger
}

// Find lists the kernels of this machine by name, python3 first. It asks
// interpreters, so it takes a moment; the answer changes only with what is
// installed. The error is ErrNoPython when there is no Python kernel; others are
// listed all the same.
func Find(ctx context.Context, cfg FindConfig) ([]Spec, error) {
	f := &finder{FindConfig: cfg}
	if f.Env == nil {
		f.Env = f.Runner.Environ()
	}
	if f.System == nil {
		f.System = []string{"/usr/local/share/jupyter", "/usr/share/jupyter"}
	}
	if f.Log == nil {
		f.Log = slog.New(slog.DiscardHandler)
	}
	specs := f.installed()
	python, err := f.python(ctx, specs)
	if err == nil {
		specs[python.Name] = python
	} else {
		delete(specs, pythonName)
	}
	rank := func(s Spec) string {
		if s.Name == pythonName {
			return ""
		}
		return s.Name
	}
	found := slices.SortedFunc(maps.Values(specs), func(a, b Spec) int { return cmp.Compare(rank(a), rank(b)) })
	return found, err
}

type finder struct{ FindConfig }

// folders are Jupyter's data folders, the preferred first.
func (f *finder) folders() []string {
	dirs := filepath.SplitList(lookup(f.Env, "JUPYTER_PATH"))
	if f.Venv != "" {
		dirs = append(dirs, filepath.Join(f.Venv, "share/jupyter"))
	}
	home, data := lookup(f.Env, "HOME"), lookup(f.Env, "XDG_DATA_HOME")
	switch own := lookup(f.Env, "JUPYTER_DATA_DIR"); {
	case own != "":
		dirs = append(dirs, own)
	case data != "":
		dirs = append(dirs, filepath.Join(data, "jupyter"))
	case home != "":
		dirs = append(dirs, filepath.Join(home, ".local/share/jupyter"))
	}
	dirs = append(dirs, f.System...)
	return slices.DeleteFunc(dirs, func(d string) bool { return !filepath.IsAbs(d) })
}

var specName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-zA-Z0-9._-]+$`) })

// installed reads the specifications in all folders. One that cannot be used is
// left out with a line in the log: it is no reason to have no kernel at all.
func (f *finder) installed() map[string]Spec {
	specs := map[string]Spec{}
	for _, dir := range f.folders() {
		entries, err := os.ReadDir(filepath.Join(dir, "kernels"))
		if err != nil {
			continue
		}
		for _, e := range entries {
			name := strings.ToLower(e.Name())
			if _, known := specs[name]; known || !specName().MatchString(name) {
				continue
			}
			spec, err := f.load(filepath.Join(dir, "kernels", e.Name()), filepath.Dir(filepath.Dir(dir)))
			if err != nil {
				f.Log.Warn("kernel specification left out", "name", name, "folder", dir, "error", err)
				continue
			}
			spec.Name = name
			specs[name] = spec
		}
	}
	return specs
}

// load reads one specification. prefix is the installation it belongs to, whose
// programs it may name without a path.
func (f *finder) load(dir, prefix string) (Spec, error) {
	path := filepath.Join(dir, "kernel.json")
	if info, err := os.Stat(path); err != nil || info.Size() > maxSpecFile {
		return Spec{}, errors.Join(err, errors.New("kernel.json is missing or too long"))
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return Spec{}, err
	}
	var file struct {
		Argv          []string          `json:"argv"`
		DisplayName   string            `json:"display_name"`
		Language      string            `json:"language"`
		InterruptMode string            `json:"interrupt_mode"`
		Env           map[string]string `json:"env"`
	}
	if err := json.Unmarshal(b, &file); err != nil {
		return Spec{}, fmt.Errorf("understand kernel.json: %w", err)
	}
	if len(file.Argv) == 0 || !slices.ContainsFunc(file.Argv, func(a string) bool { return strings.Contains(a, connectionFile) }) {
		return Spec{}, fmt.Errorf("argv of kernel.json does not hold %s", connectionFile)
	}
	program, ok := f.program(file.Argv[0], prefix)
	if !ok {
		return Spec{}, fmt.Errorf("its program %q is not installed", file.Argv[0])
	}
	file.Argv[0] = program
	return Spec{
		DisplayName: file.DisplayName, Language: file.Language, Argv: file.Argv, Env: file.Env,
		InterruptMode: cmp.Or(file.InterruptMode, "signal"), Dir: dir,
	}, nil
}

func (f *finder) program(name, prefix string) (string, bool) {
	if filepath.IsAbs(name) {
		return name, executable(name)
	}
	for _, dir := range append([]string{filepath.Join(prefix, "bin")}, filepath.SplitList(lookup(f.Env, "PATH"))...) {
		if path := filepath.Join(dir, name); filepath.IsAbs(path) && executable(path) {
			return path, true
		}
	}
	return "", false
}

func executable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}

// python finds an interpreter that has ipykernel.
func (f *finder) python(ctx context.Context, specs map[string]Spec) (Spec, error) {
	tried := map[string]bool{}
	for _, path := range f.interpreters(specs) {
		if tried[path] || !executable(path) {
			continue
		}
		tried[path] = true
		python, version, err := f.probe(ctx, path)
		if ctx.Err() != nil {
			return Spec{}, fmt.Errorf("look for a Python: %w", context.Cause(ctx))
		}
		if err != nil {
			f.Log.Debug("python left out", "path", path, "error", err)
			continue
		}
		spec := Spec{
			Name: pythonName, DisplayName: "Python " + version, Language: "python", InterruptMode: "signal",
			Argv: []string{python, "-m", "ipykernel_launcher", "-f", connectionFile},
		}
		if f.Venv != "" && path == venvPython(f.Venv) {
			spec = spec.inVenv(f.Venv)
		}
		return spec, nil
	}
	return Spec{}, ErrNoPython
}

// interpreters are the candidates, the preferred first. All in PATH are: the
// first may be a version manager's and lack what the next has.
func (f *finder) interpreters(specs map[string]Spec) []string {
	var paths []string
	if f.Venv != "" {
		paths = append(paths, venvPython(f.Venv))
	}
	for _, name := range []string{"python3", "python"} {
		for _, dir := range filepath.SplitList(lookup(f.Env, "PATH")) {
			if filepath.IsAbs(dir) {
				paths = append(paths, filepath.Join(dir, name))
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(specs)) {
		if s := specs[name]; s.ipykernel() {
			paths = append(paths, s.Argv[0])
		}
	}
	return paths
}

func venvPython(venv string) string { return filepath.Join(venv, "bin/python") }

// probe asks an interpreter for its real path, which behind a version manager's
// wrapper is another and starts faster, for its version, and whether it has
// ipykernel. Finding a module takes a tenth of the time of importing it.
func (f *finder) probe(ctx context.Context, path string) (python, version string, err error) {
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	const question = "import sys, importlib.util as u\n" +
		"if not u.find_spec('ipykernel_launcher'): sys.exit('it has no ipykernel')\n" +
		"print(sys.executable, sys.version.split()[0], sep='\\n')"
	// In a folder of no meaning: where a user's files are, one may be named like a module.
	result, err := f.Runner.Run(ctx, proc.Command{Path: path, Args: []string{"-c", question}, Dir: "/", Env: f.Env, Grace: -1})
	if err != nil {
		return "", "", err
	}
	if result.Exit.Code != 0 {
		return "", "", fmt.Errorf("%v: %s", result.Exit, strings.TrimSpace(string(result.Stderr)))
	}
	python, version, _ = strings.Cut(strings.TrimSpace(string(result.Stdout)), "\n")
	if !filepath.IsAbs(python) || version == "" {
		return "", "", fmt.Errorf("it answered %q", result.Stdout)
	}
	return python, version, nil
}
