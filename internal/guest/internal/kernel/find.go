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

	"github.com/cove-sandbox/cove/internal/guest/internal/environ"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

const (
	// probeTime limits the query of one interpreter.
	probeTime = 15 * time.Second
	// maxProbes is how many interpreters are queried concurrently.
	maxProbes = 4
	// maxInterpreters limits how many are queried.
	maxInterpreters = 32
	// maxSpecFile limits the size of a kernel.json.
	maxSpecFile = 1 << 20
	// pythonName is the name of the default Python kernel.
	pythonName = "python3"
)

// ErrNoPython says that no Python interpreter has ipykernel.
var ErrNoPython = errors.New("no Python with ipykernel found; install it: pip install ipykernel, or the Debian package python3-ipykernel")

// FindConfig configures the search for kernels.
type FindConfig struct {
	Runner *proc.Runner
	// Env is the environment of kernels. Its PATH, HOME, JUPYTER_PATH, JUPYTER_DATA_DIR and
	// XDG_DATA_HOME set the folders to search. Nil: the runner's.
	Env []string
	// Venv is the virtual environment whose Python is preferred. Empty: none.
	Venv string
	// Python is the interpreter with the highest priority. Empty: none.
	Python string
	// Version is the preferred Python version, such as 3.12. Empty or not installed: the
	// first interpreter.
	Version string
	// System are the machine's data folders. Nil: /usr/local/share/jupyter and
	// /usr/share/jupyter.
	System []string
	Log    *slog.Logger
}

// Find lists the installed kernels by name, python3 first. It runs interpreters, so it is
// slow. If there is no Python kernel, it returns the other kernels and ErrNoPython.
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
	pythons, err := f.findPythons(ctx, specs)
	if err != nil {
		delete(specs, pythonName)
	}
	for i, python := range pythons {
		if i == 0 {
			specs[pythonName] = python
		}
		// Each is also listed by its version, unless a specification has that name.
		python.Name = pythonName[:len(pythonName)-1] + minor(strings.TrimPrefix(python.DisplayName, "Python "))
		if _, known := specs[python.Name]; !known {
			specs[python.Name] = python
		}
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

// folders returns Jupyter's data folders in order of priority.
func (f *finder) folders() []string {
	dirs := filepath.SplitList(environ.Get(f.Env, "JUPYTER_PATH"))
	if f.Venv != "" {
		dirs = append(dirs, filepath.Join(f.Venv, "share/jupyter"))
	}
	home, data := environ.Get(f.Env, "HOME"), environ.Get(f.Env, "XDG_DATA_HOME")
	switch own := environ.Get(f.Env, "JUPYTER_DATA_DIR"); {
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

// installed reads the specifications in all folders. It logs and ignores unusable ones.
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
				f.Log.Warn("kernel specification ignored", "name", name, "folder", dir, "error", err)
				continue
			}
			spec.Name = name
			specs[name] = spec
		}
	}
	return specs
}

// load reads one specification. prefix is its installation, whose programs it may name
// without a path.
func (f *finder) load(dir, prefix string) (Spec, error) {
	path := filepath.Join(dir, "kernel.json")
	if info, err := os.Stat(path); err != nil || info.Size() > maxSpecFile {
		return Spec{}, errors.Join(err, errors.New("kernel.json is missing or too large"))
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
		return Spec{}, fmt.Errorf("parse kernel.json: %w", err)
	}
	if len(file.Argv) == 0 || !slices.ContainsFunc(file.Argv, func(a string) bool { return strings.Contains(a, connectionFile) }) {
		return Spec{}, fmt.Errorf("argv in kernel.json does not contain %s", connectionFile)
	}
	program, ok := f.findProgram(file.Argv[0], prefix)
	if !ok {
		return Spec{}, fmt.Errorf("program %q is not installed", file.Argv[0])
	}
	file.Argv[0] = program
	return Spec{
		DisplayName: file.DisplayName, Language: file.Language, Argv: file.Argv, Env: file.Env,
		InterruptMode: cmp.Or(file.InterruptMode, "signal"), Dir: dir,
	}, nil
}

func (f *finder) findProgram(name, prefix string) (string, bool) {
	if filepath.IsAbs(name) {
		return name, isExecutable(name)
	}
	for _, dir := range append([]string{filepath.Join(prefix, "bin")}, filepath.SplitList(environ.Get(f.Env, "PATH"))...) {
		if path := filepath.Join(dir, name); filepath.IsAbs(path) && isExecutable(path) {
			return path, true
		}
	}
	return "", false
}

func isExecutable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}

// findPythons finds the interpreters that have ipykernel, in order of priority.
func (f *finder) findPythons(ctx context.Context, specs map[string]Spec) ([]Spec, error) {
	paths := f.interpreters(specs)
	found := make([]*Spec, len(paths))
	turns := make(chan struct{}, maxProbes)
	var wait sync.WaitGroup
	for i, path := range paths {
		wait.Go(func() {
			turns <- struct{}{}
			defer func() { <-turns }()
			python, version, err := f.probe(ctx, path)
			if err != nil {
				f.Log.Debug("python ignored", "path", path, "error", err)
				return
			}
			spec := Spec{
				Name: pythonName, DisplayName: "Python " + version, Language: "python", InterruptMode: "signal",
				Argv: []string{python, "-m", "ipykernel_launcher", "-f", connectionFile},
			}
			if f.Venv != "" && path == venvPython(f.Venv) {
				spec = spec.inVenv(f.Venv)
			}
			found[i] = &spec
		})
	}
	wait.Wait()
	if ctx.Err() != nil {
		return nil, fmt.Errorf("search for Python: %w", context.Cause(ctx))
	}
	var pythons []Spec
	for _, spec := range found {
		if spec != nil {
			pythons = append(pythons, *spec)
		}
	}
	if len(pythons) == 0 {
		return nil, ErrNoPython
	}
	wanted := strings.TrimLeft(strings.ToLower(f.Version), "pythonv-")
	at := slices.IndexFunc(pythons, func(s Spec) bool { return strings.HasPrefix(s.DisplayName+".", "Python "+wanted+".") })
	if at < 0 && wanted != "" { // accept another patch release
		at = slices.IndexFunc(pythons, func(s Spec) bool { return strings.HasPrefix(s.DisplayName+".", "Python "+minor(wanted)+".") })
	}
	switch {
	case at > 0:
		chosen := pythons[at]
		pythons = slices.Insert(slices.Delete(pythons, at, at+1), 0, chosen)
	case at < 0 && wanted != "":
		f.Log.Warn("preferred python version is not installed or has no ipykernel", "version", f.Version, "used", pythons[0].DisplayName)
	}
	return pythons, nil
}

// minor returns the first two numbers of a version.
func minor(version string) string {
	parts := strings.SplitN(version, ".", 3)
	return strings.Join(parts[:min(2, len(parts))], ".")
}

// interpreters returns the candidates in order of priority, including all in PATH: the
// first may belong to a version manager and have no ipykernel.
func (f *finder) interpreters(specs map[string]Spec) []string {
	paths := []string{f.Python}
	if f.Venv != "" {
		paths = append(paths, venvPython(f.Venv))
	}
	for _, name := range []string{"python3", "python", "python3.[0-9]", "python3.[0-9][0-9]"} {
		for _, dir := range filepath.SplitList(environ.Get(f.Env, "PATH")) {
			if filepath.IsAbs(dir) {
				paths = append(paths, expandName(dir, name)...)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(specs)) {
		if s := specs[name]; s.ipykernel() {
			paths = append(paths, s.Argv[0])
		}
	}
	seen := map[string]bool{}
	paths = slices.DeleteFunc(paths, func(path string) bool {
		// Skip other names of a program, such as python3.11 and python3, but not the link of a
		// virtual environment to its base interpreter.
		same := path
		if file, err := filepath.EvalSymlinks(path); err == nil && filepath.Dir(file) == filepath.Dir(path) {
			same = file
		}
		again := seen[same]
		seen[same] = true
		return again || !isExecutable(path)
	})
	return paths[:min(len(paths), maxInterpreters)]
}

// expandName returns the programs of a folder that have the name or match the pattern, the
// newest version first.
func expandName(dir, name string) []string {
	if !strings.Contains(name, "[") {
		return []string{filepath.Join(dir, name)}
	}
	found, err := filepath.Glob(filepath.Join(dir, name))
	if err != nil { // the folder's name is a malformed pattern
		return nil
	}
	slices.Reverse(found)
	return found
}

func venvPython(venv string) string { return filepath.Join(venv, "bin/python") }

// probe returns the real path of an interpreter, which starts faster than a version
// manager's wrapper, and its version. It fails if ipykernel is not installed. Finding the
// module is ten times faster than importing it.
func (f *finder) probe(ctx context.Context, path string) (python, version string, err error) {
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	const question = "import sys, importlib.util as u\n" +
		"if not u.find_spec('ipykernel_launcher'): sys.exit('ipykernel is not installed')\n" +
		"print(sys.executable, sys.version.split()[0], sep='\\n')"
	// Run in /, because a user's file may have the name of a module.
	result, err := f.Runner.Run(ctx, proc.Command{Path: path, Args: []string{"-c", question}, Dir: "/", Env: f.Env, Grace: -1})
	if err != nil {
		return "", "", err
	}
	if result.Exit.Code != 0 {
		return "", "", fmt.Errorf("%v: %s", result.Exit, strings.TrimSpace(string(result.Stderr)))
	}
	python, version, _ = strings.Cut(strings.TrimSpace(string(result.Stdout)), "\n")
	if !filepath.IsAbs(python) || version == "" {
		return "", "", fmt.Errorf("unexpected reply %q", result.Stdout)
	}
	return python, version, nil
}
