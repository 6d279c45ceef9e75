package info

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

// version is the cached version of a program, valid while its file is unchanged.
type version struct {
	modified time.Time
	text     string
}

// queryTime limits a call of another program.
const queryTime = 20 * time.Second

// path returns the folders that are searched for programs.
func (s *Service) path() []string {
	for _, pair := range s.Runner.Environ() {
		if list, ok := strings.CutPrefix(pair, "PATH="); ok {
			return filepath.SplitList(list)
		}
	}
	return []string{"/usr/local/bin", "/usr/bin", "/bin"}
}

var (
	pythonName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^python(3(\.\d+)?)?$`) })
	nodeName   = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^node(js)?(-?\d+)?$`) })
)

func (s *Service) pythons() map[string][]string {
	dirs := s.path()
	if s.Venv != "" {
		dirs = append([]string{filepath.Join(s.Venv, "bin")}, dirs...)
	}
	return find(dirs, pythonName())
}

func (s *Service) nodes() map[string][]string { return find(s.path(), nodeName()) }

// find lists programs by their real file, each with its names.
func find(dirs []string, name *regexp.Regexp) map[string][]string {
	out := map[string][]string{}
	for _, dir := range dirs {
		entries, err := os.ReadDir(dir)
		if err != nil {
			continue
		}
		for _, e := range entries {
			if !name.MatchString(e.Name()) {
				continue
			}
			path := filepath.Join(dir, e.Name())
			key := fileIdentity(path)
			if key == "" || slices.Contains(out[key], path) {
				continue
			}
			out[key] = append(out[key], path)
		}
	}
	return out
}

// fileIdentity returns the real file of a program, or the folder of its virtual environment, which has
// its own packages.
func fileIdentity(path string) string {
	info, err := os.Stat(path)
	if err != nil || info.IsDir() || info.Mode()&0o111 == 0 {
		return ""
	}
	dir := filepath.Dir(path)
	if _, err := os.Stat(filepath.Join(dir, "..", "pyvenv.cfg")); err == nil {
		return dir
	}
	target, err := filepath.EvalSymlinks(path)
	if err != nil {
		return path
	}
	return target
}

// interpreters queries the version of each program, concurrently.
func (s *Service) interpreters(ctx context.Context, found map[string][]string) []Tool {
	ctx, cancel := context.WithTimeout(ctx, queryTime)
	defer cancel()
	var mu sync.Mutex
	var out []Tool
	var wait sync.WaitGroup
	for _, paths := range found {
		wait.Go(func() {
			ver := s.version(ctx, paths[0])
			if ver == "" {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			out = append(out, Tool{Ver: &ver, Bin: &paths[0], Alias: paths[1:]})
		})
	}
	wait.Wait()
	slices.SortFunc(out, func(a, b Tool) int { return cmp.Compare(*a.Bin, *b.Bin) })
	return merge(out)
}

// merge combines programs of the same folder and version, since the wrappers of a version manager
// are different files of one interpreter.
func merge(list []Tool) []Tool {
	var out []Tool
	for _, t := range list {
		if n := len(out); n > 0 && *out[n-1].Ver == *t.Ver && filepath.Dir(*out[n-1].Bin) == filepath.Dir(*t.Bin) {
			out[n-1].Alias = append(append(out[n-1].Alias, *t.Bin), t.Alias...)
			continue
		}
		out = append(out, t)
	}
	return out
}

var versionText = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\d+(\.\d+)+\S*`) })

func (s *Service) version(ctx context.Context, path string) string {
	info, err := os.Stat(path)
	if err != nil {
		return ""
	}
	s.mu.Lock()
	known, ok := s.versions[path]
	s.mu.Unlock()
	if ok && known.modified.Equal(info.ModTime()) {
		return known.text
	}
	res, err := s.Runner.Run(ctx, proc.Command{Path: path, Args: []string{"--version"}, Limit: 4 << 10})
	if ctx.Err() != nil {
		return ""
	}
	// Failures are cached, too: the wrappers of a version manager take long to report
	// that there is no interpreter.
	found := ""
	if err == nil && res.Exit.Code == 0 {
		found = versionText().FindString(string(res.Stdout) + string(res.Stderr))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.versions[path] = version{info.ModTime(), found}
	return found
}

// catalog lists the tools that an agent should know about if they are installed.
var catalog = []struct {
	category string
	tools    []Available
}{
	{"editors", []Available{{"vim", "text editor"}, {"nano", "text editor"}, {"code-server", "VS Code in the browser"}}},
	{"search", []Available{{"rg", "search in files"}, {"fd", "find files"}, {"fdfind", "find files"},
		{"jq", "query JSON"}, {"fzf", "select from a list"}}},
	{"network", []Available{{"curl", "transfer data"}, {"wget", "download files"}, {"ssh", "remote login"}, {"dig", "look up names"}}},
	{"version control", []Available{{"git", "version control"}, {"gh", "GitHub"}, {"git-lfs", "large files in git"}}},
	{"packages", []Available{{"pip", "Python packages"}, {"pip3", "Python packages"}, {"uv", "Python packages"},
		{"npm", "Node.js packages"}, {"pnpm", "Node.js packages"}, {"yarn", "Node.js packages"}, {"apt-get", "system packages"}}},
	{"compilers", []Available{{"gcc", "C"}, {"g++", "C++"}, {"clang", "C and C++"}, {"go", "Go"}, {"cargo", "Rust"},
		{"javac", "Java"}, {"make", "build"}, {"cmake", "build"}}},
	{"media", []Available{{"ffmpeg", "audio and video"}, {"convert", "images"}, {"pandoc", "documents"},
		{"libreoffice", "office documents"}, {"pdftotext", "text of PDF files"}, {"tesseract", "text in images"}}},
	{"browser", []Available{{"chromium", "web browser"}, {"google-chrome", "web browser"}}},
	{"archives", []Available{{"tar", "archives"}, {"zip", "archives"}, {"unzip", "archives"}, {"7z", "archives"}}},
	{"agents", []Available{{"codex", "coding agent"}, {"opencode", "coding agent"}}},
}

func (s *Service) tools() []Category {
	out := []Category{}
	for _, c := range catalog {
		have := Category{Category: c.category}
		for _, t := range c.tools {
			if _, ok := s.Runner.Look(t.Name); ok {
				have.Tools = append(have.Tools, t)
			}
		}
		if len(have.Tools) > 0 {
			out = append(out, have)
		}
	}
	return out
}

// Package is one installed package.
type Package struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

const listPython = `import importlib.metadata as m, json
print(json.dumps([{"name": d.metadata["Name"], "version": d.version} for d in m.distributions() if d.metadata["Name"]]))`

// Python lists the packages of the interpreter that runs code.
func (s *Service) Python(ctx context.Context, _ op.None) ([]Package, error) {
	python := filepath.Join(s.Venv, "bin", "python")
	if _, err := os.Stat(python); s.Venv == "" || err != nil {
		var ok bool
		if python, ok = s.Runner.Look("python3", "python"); !ok {
			return nil, op.Errorf(op.Unavailable, "Python is not installed; on Debian or Ubuntu run apt-get install python3")
		}
	}
	ctx, cancel := context.WithTimeout(ctx, queryTime)
	defer cancel()
	res, err := s.Runner.Run(ctx, proc.Command{Path: python, Args: []string{"-c", listPython}, Limit: 8 << 20})
	if err != nil {
		return nil, op.Errorf(op.Unavailable, "list the packages of %q: %w", python, err)
	}
	var list []Package
	if res.Exit.Code != 0 || json.Unmarshal(res.Stdout, &list) != nil {
		return nil, op.Errorf(op.Unavailable, "list the packages of %q: exit code %d: %s", python, res.Exit.Code, proc.LastLine(res.Stderr))
	}
	return sorted(list), nil
}

// Node lists the global packages of the first Node.js in the PATH.
func (s *Service) Node(_ context.Context, _ op.None) ([]Package, error) {
	node, ok := s.Runner.Look("node", "nodejs")
	if !ok {
		return nil, op.Errorf(op.Unavailable, "Node.js is not installed; on Debian or Ubuntu run apt-get install nodejs npm")
	}
	prefix := filepath.Dir(filepath.Dir(node))
	if real, err := filepath.EvalSymlinks(node); err == nil {
		prefix = filepath.Dir(filepath.Dir(real))
	}
	var list []Package
	for _, root := range []string{filepath.Join(prefix, "lib/node_modules"), filepath.Join(prefix, "local/lib/node_modules")} {
		for _, pattern := range []string{"*/package.json", "@*/*/package.json"} {
			files, err := filepath.Glob(filepath.Join(root, pattern))
			if err != nil {
				return nil, err
			}
			for _, file := range files {
				p, err := manifest(file)
				if err != nil {
					continue
				}
				list = append(list, p)
			}
		}
	}
	return sorted(list), nil
}

func manifest(file string) (Package, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return Package{}, err
	}
	var p Package
	if err := json.Unmarshal(b, &p); err != nil {
		return Package{}, err
	}
	if p.Name == "" {
		return Package{}, errors.New("the manifest has no name")
	}
	return p, nil
}

func sorted(list []Package) []Package {
	slices.SortFunc(list, func(a, b Package) int {
		return cmp.Or(cmp.Compare(strings.ToLower(a.Name), strings.ToLower(b.Name)), cmp.Compare(a.Version, b.Version))
	})
	return slices.Compact(list)
}
