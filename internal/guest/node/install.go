package node

import (
	"cmp"
	"context"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/guest/internal/environ"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

const (
	notInstalled = "Node.js is not installed; on Debian or Ubuntu: apt-get install nodejs npm"
	// versionTimeout limits a query for the version of a program.
	versionTimeout = 10 * time.Second
)

// cachedVersion is the version of a program, valid until its file changes.
type cachedVersion struct {
	modified time.Time
	size     int64
	version  string
}

// installations finds the versions of Node.js on this machine.
type installations struct {
	runner    *proc.Runner
	home      string
	workspace string
	preferred string // version of code that requests none; empty: the first in PATH

	mu       sync.Mutex
	versions map[string]cachedVersion // by path
}

// program is one installed Node.js.
type program struct{ path, version string }

// installPatterns are where version managers install Node.js.
var installPatterns = []string{
	"~/.nvm/versions/node/*/bin/node",
	"~/.local/share/fnm/node-versions/*/installation/bin/node",
	"~/.fnm/node-versions/*/installation/bin/node",
	"~/.volta/tools/image/node/*/bin/node",
	"~/.asdf/installs/nodejs/*/bin/node",
	"~/.local/share/mise/installs/node/*/bin/node",
	"/usr/local/n/versions/node/*/bin/node",
	"/usr/local/lib/nodejs/*/bin/node",
	"/opt/node*/bin/node",
}

var programName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^node(js)?(-?v?\d+(\.\d+)*)?$`) })

// candidates returns the paths of programs with the name of Node.js, the default first.
func (f *installations) candidates() []string {
	var paths []string
	if path, ok := f.runner.Look("node", "nodejs"); ok {
		paths = append(paths, path)
	}
	for _, dir := range filepath.SplitList(environ.Get(f.runner.Environ(), "PATH")) {
		entries, err := os.ReadDir(dir)
		if err != nil || !filepath.IsAbs(dir) {
			continue
		}
		for _, e := range entries {
			if programName().MatchString(e.Name()) {
				paths = append(paths, filepath.Join(dir, e.Name()))
			}
		}
	}
	for _, pattern := range installPatterns {
		if rest, ok := strings.CutPrefix(pattern, "~"); ok {
			if pattern = f.home + rest; f.home == "" {
				continue
			}
		}
		if found, err := filepath.Glob(pattern); err == nil {
			paths = append(paths, found...)
		}
	}
	var distinct []string
	seen := map[string]bool{}
	for _, path := range paths {
		if file, err := filepath.EvalSymlinks(path); err == nil && !seen[file] {
			seen[file] = true
			distinct = append(distinct, path)
		}
	}
	return distinct
}

// programs queries the version of each candidate. The default comes first, then the newest.
func (f *installations) programs(ctx context.Context) []program {
	paths := f.candidates()
	found := make([]program, len(paths))
	var wait sync.WaitGroup
	for i, path := range paths {
		wait.Go(func() { found[i] = program{path, f.queryVersion(ctx, path)} })
	}
	wait.Wait()
	found = slices.DeleteFunc(found, func(p program) bool { return p.version == "" })
	if len(found) > 1 {
		slices.SortStableFunc(found[1:], func(a, b program) int { return compare(b.version, a.version) })
	}
	return f.preferVersion(found)
}

// preferVersion moves the newest program of the configured version to the front.
func (f *installations) preferVersion(found []program) []program {
	best := -1
	for i, p := range found {
		if f.preferred != "" && (f.preferred == "latest" || matches(p.version, f.preferred)) &&
			(best < 0 || compare(p.version, found[best].version) > 0) {
			best = i
		}
	}
	if best > 0 {
		chosen := found[best]
		found = slices.Insert(slices.Delete(found, best, best+1), 0, chosen)
	}
	return found
}

var versionText = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^v(\d+\.\d+\.\d+\S*)\s*$`) })

// queryVersion returns the version of a program, or "" if it is not Node.js.
func (f *installations) queryVersion(ctx context.Context, path string) string {
	info, err := os.Stat(path)
	if err != nil {
		return ""
	}
	f.mu.Lock()
	k := f.versions[path]
	f.mu.Unlock()
	if k.version != "" && k.modified.Equal(info.ModTime()) && k.size == info.Size() {
		return k.version
	}
	ctx, cancel := context.WithTimeout(ctx, versionTimeout)
	defer cancel()
	r, err := f.runner.Run(ctx, proc.Command{Path: path, Args: []string{"--version"}, Dir: "/", Limit: 4 << 10, Grace: -1})
	if err != nil {
		return ""
	}
	m := versionText().FindStringSubmatch(string(r.Stdout))
	if m == nil {
		return ""
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.versions[path] = cachedVersion{info.ModTime(), info.Size(), m[1]}
	return m[1]
}

// findVersion returns the path of a version; empty means the default one.
func (f *installations) findVersion(ctx context.Context, version string) (string, error) {
	if version == "" || version == "default" {
		return f.findDefault(ctx)
	}
	all := f.programs(ctx)
	if len(all) == 0 {
		return "", op.Errorf(op.Unavailable, "%s", notInstalled)
	}
	best := program{}
	var names []string
	for _, p := range all {
		names = append(names, p.version)
		if (version == "latest" || matches(p.version, version)) && (best.path == "" || compare(p.version, best.version) > 0) {
			best = p
		}
	}
	if best.path == "" {
		return "", op.Errorf(op.NotFound, "Node.js %s is not installed; available: %s", version, strings.Join(names, ", "))
	}
	return best.path, nil
}

// findDefault returns the path of the configured version or, if there is none, the first in PATH.
func (f *installations) findDefault(ctx context.Context) (string, error) {
	if f.preferred != "" && f.preferred != "default" {
		path, err := f.findVersion(ctx, f.preferred)
		if err == nil {
			return path, nil
		}
		op.Hint(ctx, "%v. The default version is used; to change it, edit the setting node_version (NODE_CODE_EXEC_VERSION).", err)
	}
	path, ok := f.runner.Look("node", "nodejs")
	if !ok {
		return "", op.Errorf(op.Unavailable, "%s", notInstalled)
	}
	return path, nil
}

// matches reports whether a version matches a requested one: 20 matches 20.11.1.
func matches(version, requested string) bool {
	bare := func(s string) string {
		return strings.TrimLeft(strings.TrimPrefix(strings.TrimPrefix(strings.ToLower(s), "node"), "js"), "v-")
	}
	version, requested = bare(version), bare(requested)
	return version == requested || strings.HasPrefix(version, requested+".")
}

// compare orders versions by their numbers.
func compare(a, b string) int {
	x, y := strings.Split(a, "."), strings.Split(b, ".")
	for i := range min(len(x), len(y)) {
		m, errM := strconv.Atoi(x[i])
		n, errN := strconv.Atoi(y[i])
		if errM != nil || errN != nil {
			return cmp.Compare(a, b)
		}
		if c := cmp.Compare(m, n); c != 0 {
			return c
		}
	}
	return cmp.Compare(len(x), len(y))
}

// environ returns the environment of code. It makes packages of the workspace and global
// packages available in every directory, and adds the programs of this version of Node.js.
func (f *installations) environ(path string) []string {
	env := f.runner.Environ()
	dirs := filepath.SplitList(environ.Get(env, "NODE_PATH"))
	if f.workspace != "" {
		dirs = append(dirs, filepath.Join(f.workspace, "node_modules"))
	}
	dirs = append(dirs, globalModules(path))
	env = environ.Set(env, "NODE_PATH", strings.Join(dirs, string(os.PathListSeparator)))
	if first, ok := f.runner.Look("node"); !ok || first != path {
		env = environ.Set(env, "PATH", filepath.Dir(path)+string(os.PathListSeparator)+environ.Get(env, "PATH"))
	}
	return env
}

// globalModules returns the folder of the global packages of a Node.js.
func globalModules(path string) string {
	if file, err := filepath.EvalSymlinks(path); err == nil {
		path = file
	}
	return filepath.Join(filepath.Dir(filepath.Dir(path)), "lib/node_modules")
}
