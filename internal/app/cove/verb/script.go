package verb

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/cove-sandbox/cove/client"
	"github.com/cove-sandbox/cove/internal/surface/cli"
)

// scriptFolder is the folder in the home of a sandbox that a script runs in.
const scriptFolder = "script"

// interpreters run scripts by the end of their names. Others are run as programs.
var interpreters = map[string]string{".py": "python3", ".js": "node", ".mjs": "node", ".cjs": "node",
	".ts": runTypeScript, ".mts": runTypeScript, ".sh": "bash", ".rb": "ruby", ".pl": "perl"}

// runTypeScript runs TypeScript with the first program that can. Debian's Node.js is too old; Debian has esbuild.
const runTypeScript = `typescript() {
	if [ "$(node -p 'Boolean(process.features.typescript)' 2>/dev/null)" = true ]; then exec node "$@"
	elif node --experimental-strip-types -e 0 2>/dev/null; then exec node --experimental-strip-types --no-warnings "$@"
	elif command -v tsx >/dev/null; then exec tsx "$@"
	elif command -v deno >/dev/null; then exec deno run -A "$@"
	elif command -v bun >/dev/null; then exec bun "$@"
	elif command -v esbuild >/dev/null && command -v node >/dev/null; then
		esbuild --bundle --platform=node --packages=external --log-level=warning --outfile=/tmp/script.cjs "$1" || exit
		shift; exec node /tmp/script.cjs "$@"
	fi
	echo "cannot run TypeScript: the sandbox has no Node.js 22.6 or later, tsx, Deno, Bun or esbuild;" \
		"install one, such as apt-get install esbuild nodejs" >&2
	exit 127
}
typescript`

// script is a file of this machine that runs in a sandbox.
type script struct {
	words   []string          // its path in the folder, and its arguments
	files   map[string]string // files of this machine by their paths in the folder
	results string            // folder for results, - for none
}

// newScript finds the files among a script and its arguments. Their paths stay as they are if they are below the current folder.
func newScript(args []string, results string) *script {
	s := &script{words: append([]string(nil), args...), files: map[string]string{}, results: results}
	if s.results == "" {
		name := filepath.Base(args[0])
		s.results = strings.TrimSuffix(name, filepath.Ext(name)) + "-results"
	}
	known := map[string]string{}
	for i, arg := range args {
		if known[arg] != "" {
			s.words[i] = known[arg]
			continue
		}
		if info, err := os.Stat(arg); err != nil || !info.Mode().IsRegular() {
			continue
		}
		there := filepath.ToSlash(filepath.Clean(arg))
		if !filepath.IsLocal(arg) {
			there = filepath.Base(arg)
		}
		for n := 1; s.files[there] != ""; n++ {
			there = path.Join(strconv.Itoa(n), filepath.Base(arg))
		}
		known[arg] = there
		if real, err := filepath.EvalSymlinks(arg); err == nil {
			arg = real
		}
		s.files[there], s.words[i] = arg, there
	}
	if !strings.Contains(s.words[0], "/") {
		s.words[0] = "./" + s.words[0]
	}
	return s
}

// sendScript copies a script and its files into the sandbox, and returns the line that runs it.
func (v runner) sendScript(ctx context.Context, g *client.Guest, s *script) (string, error) {
	for there, here := range s.files {
		if err := v.sendInput(ctx, g, here, scriptFolder+"/"+there); err != nil {
			return "", fmt.Errorf("copy %q: %w", here, err)
		}
	}
	by := interpreters[strings.ToLower(filepath.Ext(s.words[0]))]
	if by == "" {
		by = "chmod +x " + Quote(s.words[:1]) + " && exec"
	}
	return "cd ~/" + scriptFolder + " && " + by + " " + Quote(s.words), nil
}

func (v runner) sendInput(ctx context.Context, g *client.Guest, here, there string) error {
	f, err := os.Open(here)
	if err != nil {
		return err
	}
	defer f.Close()
	_, _, err = g.Upload(ctx, "./"+there, path.Base(there), v.Progress(f, "sent", SizeOf(f)))
	return err
}

// fetchResults copies what the script created or changed in its folder into a folder of this machine. A program in the sandbox can
// place or replace files only there.
func (v runner) fetchResults(ctx context.Context, g *client.Guest, s *script) error {
	if s.results == "-" {
		return nil
	}
	if err := os.MkdirAll(s.results, 0o777); err != nil {
		return err
	}
	root, err := os.OpenRoot(s.results)
	if err != nil {
		return err
	}
	defer root.Close()
	arrived, err := os.MkdirTemp(s.results, ".cove-")
	if err != nil {
		return err
	}
	err = copier(v).downloadFolder(ctx, g, scriptFolder+"/.", arrived)
	for there, here := range s.files {
		there = filepath.Join(arrived, filepath.FromSlash(there))
		if before, after := digest(here), digest(there); before != nil && bytes.Equal(before, after) {
			err = errors.Join(err, os.Remove(there))
		}
	}
	err = errors.Join(err, os.RemoveAll(filepath.Join(arrived, "__pycache__")), v.place(root, s.results, filepath.Base(arrived)))
	err = errors.Join(err, os.RemoveAll(arrived))
	os.Remove(s.results) // fails unless it is empty
	if err != nil {
		return fmt.Errorf("copy the results: %w", err)
	}
	return nil
}

// place moves what arrived in a folder of root into root, and names the files. It does not leave root through links.
func (v runner) place(root *os.Root, name, arrived string) error {
	return fs.WalkDir(root.FS(), arrived, func(from string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		to, err := filepath.Rel(arrived, filepath.FromSlash(from))
		if err != nil {
			return err
		}
		if err := root.MkdirAll(filepath.Dir(to), 0o777); err != nil {
			return err
		}
		if err := root.Rename(filepath.FromSlash(from), to); err != nil {
			return err
		}
		fmt.Fprintln(v.Text.Err, "result:", cli.Line(filepath.Join(name, to)))
		return nil
	})
}

// digest returns the hash of a regular file; nil if it cannot be read.
func digest(name string) []byte {
	if info, err := os.Lstat(name); err != nil || !info.Mode().IsRegular() {
		return nil
	}
	f, err := os.Open(name)
	if err != nil {
		return nil
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return nil
	}
	return h.Sum(nil)
}
