// Package arch checks the source tree against the house rules: which package may
// import which, which packages start processes, read the environment or sleep, how
// large code may grow, and that no code is repeated. It reads source text only; its
// test applies it to this repository. Each message names the rule that was broken.
package arch

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"slices"
	"strings"
)

// Rules are what a tree is checked against.
type Rules struct {
	Module    string // import path of the tree's root, with a slash at its end
	Packages  string // every package and what it may import; see House
	Tests     string // what tests of a package import beyond that
	Libraries []Library
	Calls     []Call

	MaxPackage int // lines of a package, tests aside
	MaxMethods int // methods of a type in or below one of Crowded
	Crowded    []string
	MaxMain    int // lines of a file below cmd
	MaxEqual   int // so many equal lines in a row may not stand in two files
}

// Fault is one violation of a rule.
type Fault struct {
	Rule string
	File string
	Line int
	Text string
}

func (f Fault) String() string { return fmt.Sprintf("%s:%d: %s: %s", f.File, f.Line, f.Rule, f.Text) }

// file is one parsed Go file.
type file struct {
	pkg, name string // paths below the root
	test      bool
	text      string
	ast       *ast.File
	set       *token.FileSet
}

func (f *file) fault(rule string, pos token.Pos, format string, args ...any) Fault {
	return Fault{rule, f.name, f.set.Position(pos).Line, fmt.Sprintf(format, args...)}
}

// Check returns every violation in a tree, in the order of files and lines.
func Check(tree fs.FS, r Rules) ([]Fault, error) {
	files, err := load(tree)
	if err != nil {
		return nil, err
	}
	table, faults := parseTable(r.Packages)
	faults = append(faults, table.stale(files)...)
	for i := range files {
		f := &files[i]
		faults = append(faults, r.checkSleep(f)...)
		if strings.HasPrefix(f.pkg, "cmd/") && !f.test && lines(f.text) > r.MaxMain {
			faults = append(faults, f.fault("main-size", 1, "%d lines, at most %d: what a program does lives in internal/app", lines(f.text), r.MaxMain))
		}
	}
	faults = append(faults, r.checkImports(files, table)...)
	faults = append(faults, r.checkCalls(files)...)
	faults = append(faults, r.checkPackages(files)...)
	faults = append(faults, r.checkRepetition(files)...)
	slices.SortFunc(faults, func(a, b Fault) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Text, b.Text))
	})
	return faults, nil
}

// isSkipped reports whether a folder holds no code of ours: build output, fetched
// files, or test data. The import table lists no package below such a folder.
func isSkipped(dir string) bool {
	base := path.Base(dir)
	return dir == "bin" || base == "node_modules" || base == "testdata" || base != "." && strings.HasPrefix(base, ".")
}

func load(tree fs.FS) ([]file, error) {
	var files []file
	err := fs.WalkDir(tree, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if isSkipped(name) {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") {
			return nil
		}
		text, err := fs.ReadFile(tree, name)
		if err != nil {
			return err
		}
		set := token.NewFileSet()
		parsed, err := parser.ParseFile(set, name, text, parser.ParseComments)
		if err != nil {
			return err
		}
		files = append(files, file{path.Dir(name), name, strings.HasSuffix(name, "_test.go"), string(text), parsed, set})
		return nil
	})
	return files, err
}
