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

	"github.com/cove-sandbox/cove/internal/op"
	"github.com/cove-sandbox/cove/internal/proc"
)

const (
	absent = "Node.js is not installed; on Debian or Ubuntu: apt-get install nodejs npm"
	// askTime bounds the question for a version.
	askTime = 10 * time.Second
	// maxManifest bounds a package.json.
	maxManifest = 1 << 20
	// maxPackages bounds a list of packages.
	maxPackages = 2000
)

// known is what a program said of itself, as long as it does not change.
type known struct {
	modified time.Time
	size     int64
	version  string
}

// program is one Node.js.
type program struct{ path, version string }

// places are where version managers put Node.js, below the home or the root.
var places = []string{
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
	for _, dir := range filepath.SplitList(lookup(s.Runner.Environ(), "PATH")) {
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
	for _, pattern := range places {
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

// programs asks each candidate for its version. The default is the first; after it
// come the newest.
func (s *Service) programs(ctx context.Context) []program {
	paths := s.candidates()
	found := make([]program, len(paths))
	var wait sync.WaitGroup
	for i, path := range paths {
		wait.Go(func() { found[i] = program{path, s.ask(ctx, path)} })
	}
	wait.Wait()
	found = slices.DeleteFunc(found, func(p program) bool { return p.version == "" })
	if len(found) > 1 {
		slices.SortStableFunc(found[1:], func(a, b program) int { return compare(b.version, a.version) })
	}
	return found
}

var versionText = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^v(\d+\.\d+\.\d+\S*)\s*$`) })

// ask returns the version of a program; empty if it has none to tell.
func (s *Service) ask(ctx context.Context, path string) string {
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
	s.versions[path] = known{info.ModTime(), info.Size(), m[1]}
	return m[1]
}

// pick returns the path of a version; the default one when it is empty.
func (s *Service) pick(ctx context.Context, version string) (string, error) {
	if version == "" || version == "default" {
		path, ok := s.Runner.Look("node", "nodejs")
		if !ok {
			return "", op.Errorf(op.Unavailable, "%s", absent)
		}
		return path, nil
	}
	all := s.programs(ctx)
	if len(all) == 0 {
		return "", op.Errorf(op.Unavailable, "%s", absent)
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
		return "", op.Errorf(op.NotFound, "Node.js %s is not installed; there is: %s", version, strings.Join(names, ", "))
	}
	return best.path, nil
}

// matches tells whether a version is the one asked for: 20 asks for 20.11.1 too.
func matches(version, asked string) bool {
	bare := func(s string) string { return strings.TrimPrefix(strings.TrimPrefix(strings.ToLower(s), "node"), "v") }
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

// environ is the environment of code: packages of the workspace and global ones are
// found from everywhere, and the programs it starts by name are of its version.
func (s *Service) environ(path string) []string {
	env := s.Runner.Environ()
	dirs := filepath.SplitList(lookup(env, "NODE_PATH"))
	if s.Workspace != "" {
		dirs = append(dirs, filepath.Join(s.Workspace, "node_modules"))
	}
	dirs = append(dirs, global(path))
	env = set(env, "NODE_PATH", strings.Join(dirs, string(os.PathListSeparator)))
	if first, ok := s.Runner.Look("node"); !ok || first != path {
		env = set(env, "PATH", filepath.Dir(path)+string(os.PathListSeparator)+lookup(env, "PATH"))
	}
	return env
}

// global is the folder of the packages that were installed for all of a Node.js.
func global(path string) string {
	if file, err := filepath.EvalSymlinks(path); err == nil {
		path = file
	}
	return filepath.Join(filepath.Dir(filepath.Dir(path)), "lib/node_modules")
}

func lookup(env []string, name string) string {
	found := ""
	for _, e := range env {
		if v, ok := strings.CutPrefix(e, name+"="); ok {
			found = v
		}
	}
	return found
}

func set(env []string, name, value string) []string {
	env = slices.DeleteFunc(env, func(e string) bool { return strings.HasPrefix(e, name+"=") })
	return append(env, name+"="+value)
}

// None is an input without fields.
type None struct{}

// Package is one installed package.
type Package struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

// Info tells about Node.js on this machine.
type Info struct {
	NodeVersion        string    `json:"node_version" doc:"Version that runs code unless a call names another; empty when there is none"`
	NpmVersion         string    `json:"npm_version" doc:"Version of npm beside it; empty when there is none"`
	SupportedLanguages []string  `json:"supported_languages"`
	Description        string    `json:"description"`
	RuntimeDirectory   *string   `json:"runtime_directory" doc:"Where code runs"`
	GlobalNpmDirectory *string   `json:"global_npm_directory" doc:"Where global packages are"`
	RuntimePackages    []Package `json:"runtime_packages" default:"[]" doc:"Packages installed where code runs"`
	GlobalPackages     []Package `json:"global_packages" default:"[]" doc:"Packages installed for all"`
	Error              *string   `json:"error" doc:"Why no code can run"`
	AvailableVersions  []string  `json:"available_versions" default:"[]" doc:"All versions that are installed"`
	CurrentVersion     *string   `json:"current_version" doc:"The same as node_version"`
}

// Info reads the machine.
func (s *Service) Info(ctx context.Context, _ None) (Info, error) {
	i := Info{
		SupportedLanguages: []string{"javascript"},
		Description:        "JavaScript in Node.js: a process for each call, or sessions that keep variables, with top-level await, require and import.",
		RuntimeDirectory:   &s.Workspace,
		RuntimePackages:    packages(filepath.Join(s.Workspace, "node_modules")),
	}
	all := s.programs(ctx)
	if len(all) == 0 {
		i.Error = new(absent)
		return i, nil
	}
	first, dir := all[0], global(all[0].path)
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

// About tells a version and details for a list of languages.
func (s *Service) About(ctx context.Context) (version string, details map[string]any, err error) {
	all := s.programs(ctx)
	if len(all) == 0 {
		return "", nil, op.Errorf(op.Unavailable, "%s", absent)
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
