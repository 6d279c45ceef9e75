package node

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
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
	// askTime limits a query for the version.
	askTime = 10 * time.Second
	// maxManifest limits the size of a package.json.
	maxManifest = 1 << 20
	// maxPackages limits a list of packages.
	maxPackages = 2000
)

// cachedVersion is the version of a program, valid until its file changes.
type cachedVersion struct {
	modified time.Time
	size     int64
	version  string
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

// candidates are the paths of everything that looks like Node.js, the default first.
func (s *Service) candidates() []string {
	var paths []string
	if path, ok := s.Runner.Look("node", "nodejs"); ok {
		paths = append(paths, path)
	}
	for _, dir := range filepath.SplitList(environ.Get(s.Runner.Environ(), "PATH")) {
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
			if pattern = s.Home + rest; s.Home == "" {
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
func (s *Service) programs(ctx context.Context) []program {
	paths := s.candidates()
	found := make([]program, len(paths))
	var wait sync.WaitGroup
	for i, path := range paths {
		wait.Go(func() { found[i] = program{path, s.queryVersion(ctx, path)} })
	}
	wait.Wait()
	found = slices.DeleteFunc(found, func(p program) bool { return p.version == "" })
	if len(found) > 1 {
		slices.SortStableFunc(found[1:], func(a, b program) int { return compare(b.version, a.version) })
	}
	return s.preferVersion(found)
}

// preferVersion moves the newest program of the configured version to the front.
func (s *Service) preferVersion(found []program) []program {
	best := -1
	for i, p := range found {
		if s.Version != "" && (s.Version == "latest" || matches(p.version, s.Version)) &&
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
func (s *Service) queryVersion(ctx context.Context, path string) string {
	info, err := os.Stat(path)
	if err != nil {
		return ""
	}
	s.mu.Lock()
	k := s.versions[path]
	s.mu.Unlock()
	if k.version != "" && k.modified.Equal(info.ModTime()) && k.size == info.Size() {
		return k.version
	}
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	r, err := s.Runner.Run(ctx, proc.Command{Path: path, Args: []string{"--version"}, Dir: "/", Limit: 4 << 10, Grace: -1})
	if err != nil {
		return ""
	}
	m := versionText().FindStringSubmatch(string(r.Stdout))
	if m == nil {
		return ""
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.versions[path] = cachedVersion{info.ModTime(), info.Size(), m[1]}
	return m[1]
}

// findVersion returns the path of a version; empty means the default one.
func (s *Service) findVersion(ctx context.Context, version string) (string, error) {
	if version == "" || version == "default" {
		return s.findDefault(ctx)
	}
	all := s.programs(ctx)
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
func (s *Service) findDefault(ctx context.Context) (string, error) {
	if s.Version != "" && s.Version != "default" {
		path, err := s.findVersion(ctx, s.Version)
		if err == nil {
			return path, nil
		}
		op.Hint(ctx, "%v; the default is used instead. The setting node_version (NODE_CODE_EXEC_VERSION) asks for it.", err)
	}
	path, ok := s.Runner.Look("node", "nodejs")
	if !ok {
		return "", op.Errorf(op.Unavailable, "%s", notInstalled)
	}
	return path, nil
}

// matches reports whether a version matches a request: 20 matches 20.11.1.
func matches(version, asked string) bool {
	bare := func(s string) string {
		return strings.TrimLeft(strings.TrimPrefix(strings.TrimPrefix(strings.ToLower(s), "node"), "js"), "v-")
	}
	version, asked = bare(version), bare(asked)
	return version == asked || strings.HasPrefix(version, asked+".")
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

// environ is the environment of code. It finds the packages of the workspace and the
// global ones from everywhere, and the programs of its own version of Node.js.
func (s *Service) environ(path string) []string {
	env := s.Runner.Environ()
	dirs := filepath.SplitList(environ.Get(env, "NODE_PATH"))
	if s.Workspace != "" {
		dirs = append(dirs, filepath.Join(s.Workspace, "node_modules"))
	}
	dirs = append(dirs, globalModules(path))
	env = environ.Set(env, "NODE_PATH", strings.Join(dirs, string(os.PathListSeparator)))
	if first, ok := s.Runner.Look("node"); !ok || first != path {
		env = environ.Set(env, "PATH", filepath.Dir(path)+string(os.PathListSeparator)+environ.Get(env, "PATH"))
	}
	return env
}

// globalModules is the folder of the global packages of a Node.js.
func globalModules(path string) string {
	if file, err := filepath.EvalSymlinks(path); err == nil {
		path = file
	}
	return filepath.Join(filepath.Dir(filepath.Dir(path)), "lib/node_modules")
}

// Package is one installed package.
type Package struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

// Info describes Node.js on this machine.
type Info struct {
	NodeVersion        string    `json:"node_version" doc:"Default version; empty if there is none"`
	NpmVersion         string    `json:"npm_version" doc:"Version of npm; empty if there is none"`
	SupportedLanguages []string  `json:"supported_languages"`
	Description        string    `json:"description"`
	RuntimeDirectory   *string   `json:"runtime_directory" doc:"Directory in which code runs"`
	GlobalNpmDirectory *string   `json:"global_npm_directory" doc:"Directory of the global packages"`
	RuntimePackages    []Package `json:"runtime_packages" default:"[]" doc:"Packages in the runtime directory"`
	GlobalPackages     []Package `json:"global_packages" default:"[]" doc:"Global packages"`
	Error              *string   `json:"error" doc:"Why code cannot run"`
	AvailableVersions  []string  `json:"available_versions" default:"[]" doc:"Installed versions"`
	CurrentVersion     *string   `json:"current_version" doc:"Same as node_version"`
}

// Info inspects the machine.
func (s *Service) Info(ctx context.Context, _ op.None) (Info, error) {
	i := Info{
		SupportedLanguages: []string{"javascript"},
		Description: "JavaScript in Node.js: a process for each call, or sessions that keep variables, with " +
			"top-level await, require and import.",
		RuntimeDirectory: &s.Workspace,
		RuntimePackages:  packages(filepath.Join(s.Workspace, "node_modules")),
	}
	all := s.programs(ctx)
	if len(all) == 0 {
		i.Error = new(notInstalled)
		return i, nil
	}
	first, dir := all[0], globalModules(all[0].path)
	i.NodeVersion, i.CurrentVersion, i.GlobalNpmDirectory = first.version, &first.version, &dir
	i.GlobalPackages = packages(dir)
	for _, p := range i.GlobalPackages {
		if p.Name == "npm" {
			i.NpmVersion = p.Version
		}
	}
	for _, p := range all {
		if !slices.Contains(i.AvailableVersions, p.version) {
			i.AvailableVersions = append(i.AvailableVersions, p.version)
		}
	}
	return i, nil
}

// About returns the default version and details.
func (s *Service) About(ctx context.Context) (version string, details map[string]any, err error) {
	all := s.programs(ctx)
	if len(all) == 0 {
		return "", nil, op.Errorf(op.Unavailable, "%s", notInstalled)
	}
	var versions []string
	for _, p := range all {
		versions = append(versions, p.version)
	}
	return all[0].version, map[string]any{"available_versions": versions, "max_sessions": s.MaxSessions}, nil
}

// packages reads the manifests below a node_modules folder.
func packages(dir string) []Package {
	list := []Package{}
	for _, pattern := range []string{"*/package.json", "@*/*/package.json"} {
		files, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			continue
		}
		for _, file := range files {
			if p, err := manifest(file); err == nil && len(list) < maxPackages {
				list = append(list, p)
			}
		}
	}
	slices.SortFunc(list, func(a, b Package) int { return cmp.Compare(a.Name, b.Name) })
	return list
}

func manifest(file string) (Package, error) {
	var p Package
	info, err := os.Stat(file)
	if err != nil || !info.Mode().IsRegular() || info.Size() > maxManifest {
		return p, errors.Join(err, fs.ErrInvalid)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return p, err
	}
	if err := json.Unmarshal(b, &p); err != nil {
		return p, err
	}
	if p.Name == "" {
		return p, errors.New("the manifest has no name")
	}
	return p, nil
}
