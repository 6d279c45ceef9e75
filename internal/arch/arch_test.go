package arch

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
)

const module = "github.com/cove-sandbox/cove/"

// levels from the ground up: an import goes down, never up or sideways, unless a
// pair in allowed says otherwise.
var levels = map[string]int{
	"internal/op": 0, "internal/sandbox": 0, "internal/config": 0,
	"internal/guest": 2, "internal/hub": 2, "internal/provider": 2,
	"internal/surface": 3, "internal/app": 4,
	"cmd": 5, "test": 5, "bench": 5,
	"web": 1, "api": 1, "client": 1,
}

// anything else below internal is a mechanism.
const mechanism = 1

// allowed are the exceptions, each with its reason.
var allowed = []struct{ from, to, reason string }{
	{"internal/provider/", "internal/provider/providertest", "each provider passes the one suite"},
	{"internal/app", "internal/app/host", "both programs are hosted alike, and neither links the other"},
}

// restricted packages may be imported only by those named.
var restricted = []struct {
	path   string
	by     []string
	reason string
}{
	{"os/exec", []string{"internal/proc", "internal/testenv"}, "one door for starting processes: groups, reaping and the guard live there"},
	{"github.com/modelcontextprotocol/go-sdk/mcp", []string{"internal/surface/mcp", "internal/guest/mcphub", "internal/hub", "test/"}, "services know operations, not protocols"},
	{"github.com/coder/websocket", []string{"internal/surface/", "internal/cdp", "internal/hub", "test/", "client"}, "services speak op.Conn"},
	{"github.com/spf13/cobra", []string{"internal/surface/cli", "internal/app"}, "flags come from the table"},
	{"k8s.io/client-go", []string{"internal/provider/kubernetes"}, "aio must stay small: no cluster library in it"},
	{"github.com/moby/moby/client", []string{"internal/provider/docker"}, "aio must stay small: no engine library in it"},
	{"C", nil, "both programs are built without cgo"},
}

type file struct {
	pkg  string // path below the module
	name string
	test bool
	ast  *ast.File
}

func load(t *testing.T) []file {
	t.Helper()
	files, err := tree()
	if err != nil {
		t.Fatal(err)
	}
	return files
}

var tree = sync.OnceValues(func() ([]file, error) {
	root := filepath.Join("..", "..")
	var files []file
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if n := d.Name(); path != root && (strings.HasPrefix(n, ".") || n == "node_modules" || n == "testdata" || n == "bin") {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, ".go") {
			return nil
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		files = append(files, file{filepath.ToSlash(filepath.Dir(rel)), rel, strings.HasSuffix(path, "_test.go"), parsed})
		return nil
	})
	return files, err
})

func level(pkg string) int {
	for prefix, n := range levels {
		if pkg == prefix || strings.HasPrefix(pkg, prefix+"/") {
			return n
		}
	}
	return mechanism
}

func imports(f file) []string {
	var out []string
	for _, spec := range f.ast.Imports {
		if path, err := strconv.Unquote(spec.Path.Value); err == nil {
			out = append(out, path)
		}
	}
	return out
}

func TestImportsGoDown(t *testing.T) {
	for _, f := range load(t) {
		if f.test {
			continue // a test may bring the neighbours it needs
		}
		for _, path := range imports(f) {
			to, ours := strings.CutPrefix(path, module)
			if !ours || to == f.pkg || strings.HasPrefix(to, f.pkg+"/") || level(to) < level(f.pkg) || excepted(f.pkg, to) {
				continue
			}
			if level(to) == mechanism && level(f.pkg) == mechanism {
				continue // mechanisms may stand on each other; Go itself refuses circles
			}
			t.Errorf("%s imports %s: an import goes down a level, never up or sideways", f.name, to)
		}
	}
}

func excepted(from, to string) bool {
	for _, a := range allowed {
		if strings.HasPrefix(from, a.from) && to == a.to {
			return true
		}
	}
	return false
}

func TestRestrictedImports(t *testing.T) {
	for _, f := range load(t) {
		if f.test {
			continue
		}
		for _, path := range imports(f) {
			for _, r := range restricted {
				if path != r.path && !strings.HasPrefix(path, r.path+"/") {
					continue
				}
				ok := false
				for _, by := range r.by {
					ok = ok || f.pkg == strings.TrimSuffix(by, "/") || strings.HasPrefix(f.pkg, by)
				}
				if !ok {
					t.Errorf("%s imports %s: %s", f.name, path, r.reason)
				}
			}
		}
	}
}

func TestEveryPackageSaysWhatItIs(t *testing.T) {
	comments := map[string]int{}
	seen := map[string]bool{}
	for _, f := range load(t) {
		if f.test {
			continue
		}
		seen[f.pkg] = true
		if f.ast.Doc != nil {
			comments[f.pkg]++
		}
	}
	for pkg := range seen {
		if comments[pkg] != 1 {
			t.Errorf("%s has %d package comments, want one", pkg, comments[pkg])
		}
	}
}

// TestEnvironmentIsReadOnce: configuration is read once and passed by value.
func TestEnvironmentIsReadOnce(t *testing.T) {
	for _, f := range load(t) {
		if f.test || strings.HasPrefix(f.pkg, "internal/config") || strings.HasPrefix(f.pkg, "internal/testenv") || strings.HasPrefix(f.pkg, "bench") || strings.HasPrefix(f.pkg, "test/") {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			sel, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			if pkg, ok := sel.X.(*ast.Ident); ok && pkg.Name == "os" && (sel.Sel.Name == "Getenv" || sel.Sel.Name == "LookupEnv") {
				t.Errorf("%s reads the environment: only internal/config does", f.name)
			}
			return true
		})
	}
}

// TestMainsAreSmall: what a program does lives in internal/app.
func TestMainsAreSmall(t *testing.T) {
	for _, name := range []string{"aio", "cove"} {
		b, err := os.ReadFile(filepath.Join("..", "..", "cmd", name, "main.go"))
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(string(b), "\n"); n > 60 {
			t.Errorf("cmd/%s/main.go has %d lines, at most 60", name, n)
		}
	}
}
