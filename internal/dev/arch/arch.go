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

	Sleep       []string // packages that may sleep
	ManyMethods []string // packages whose types may have any number of methods
	Limits      map[string]Limit
	Exceptions  string // see parseExceptions
	MaxColumns  int    // of a line
	Words       []Word // that no text contains
	MaxEqual    int    // this many equal lines in a row must not occur in two files
}

// Fault is one violation of a rule.
type Fault struct {
	Rule string
	File string
	Line int
	Text string
}

func (f Fault) String() string {
	if f.Line == 0 {
		return fmt.Sprintf("%s: %s: %s", f.File, f.Rule, f.Text)
	}
	return fmt.Sprintf("%s:%d: %s: %s", f.File, f.Line, f.Rule, f.Text)
}

// file is one parsed Go file.
type file struct {
	pkg, name string // paths below the root
	test      bool
	text      string
	ast       *ast.File
	set       *token.FileSet
	uses      map[ast.Node]string // see usesOf
}

func (f *file) fault(rule string, pos token.Pos, format string, args ...any) Fault {
	return Fault{rule, f.name, f.line(pos), fmt.Sprintf(format, args...)}
}

func (f *file) line(pos token.Pos) int { return f.set.Position(pos).Line }

// Check returns every violation in a tree, in the order of files and lines.
func Check(tree fs.FS, r Rules) ([]Fault, error) {
	files, err := load(tree)
	if err != nil {
		return nil, err
	}
	excepted, err := parseExceptions(r.Exceptions)
	if err != nil {
		return nil, err
	}
	table, faults := parseTable(r.Packages)
	faults = append(faults, table.stale(files)...)
	faults = append(faults, r.checkImports(files, table)...)
	faults = append(faults, r.checkCalls(files)...)
	found := r.measure(files)
	if err := r.measureScripts(tree, found); err != nil {
		return nil, err
	}
	faults = append(faults, excepted.check(found, r.Limits)...)
	faults = append(faults, checkComments(files)...)
	faults = append(faults, r.checkRepetition(files)...)
	wrong, err := checkWords(tree, r.Words)
	if err != nil {
		return nil, err
	}
	faults = append(faults, wrong...)
	slices.SortFunc(faults, func(a, b Fault) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Text, b.Text))
	})
	return faults, nil
}

// isSkipped reports whether a folder is not checked: build output, fetched files and
// test data. No package can import code below it, because the table lists none there.
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
		f := file{path.Dir(name), name, strings.HasSuffix(name, "_test.go"), string(text), parsed, set, nil}
		f.uses = usesOf(&f)
		files = append(files, f)
		return nil
	})
	return files, err
}
