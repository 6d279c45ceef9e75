// Package arch holds the house rules as checks on the source tree: which package
// may import which, who may start processes or read the environment, how large a
// package or a type may grow, and that nothing is written twice. It knows only
// source text; its test applies it to this repository.
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
	"strconv"
	"strings"
)

// Rules are what a tree is checked against.
type Rules struct {
	Module    string // import path of the tree's root, with a slash at its end
	Packages  string // every package and what it may import; see House
	Libraries []Library
	Calls     []Call

	MaxPackage int // lines of a package, tests aside
	MaxMethods int // methods of a type in or below one of Crowded
	Crowded    []string
	MaxMain    int // lines of a file below cmd
	MaxEqual   int // so many equal lines in a row may not stand in two files
}

// Library is an import path (with everything below it) that only some packages may use.
type Library struct {
	Path   string
	By     []string
	Reason string
}

// Call is a function that only some packages may use.
type Call struct {
	Name   string // import path, dot, function
	By     []string
	Reason string
}

// Fault is one violation.
type Fault struct {
	File string
	Line int
	Text string
}

func (f Fault) String() string { return fmt.Sprintf("%s:%d: %s", f.File, f.Line, f.Text) }

// file is one parsed Go file.
type file struct {
	pkg, name string // paths below the root
	test      bool
	text      string
	ast       *ast.File
	set       *token.FileSet
}

func (f *file) fault(pos token.Pos, format string, args ...any) Fault {
	return Fault{f.name, f.set.Position(pos).Line, fmt.Sprintf(format, args...)}
}

// imports maps the local name of each import to its path.
func (f *file) imports() map[string]*ast.ImportSpec {
	out := map[string]*ast.ImportSpec{}
	for _, spec := range f.ast.Imports {
		name := path.Base(importPath(spec))
		if spec.Name != nil {
			name = spec.Name.Name
		}
		if name == "_" || name == "." || out[name] != nil {
			name += importPath(spec) // unnamed, but still an import
		}
		out[name] = spec
	}
	return out
}

func importPath(spec *ast.ImportSpec) string {
	p, err := strconv.Unquote(spec.Path.Value)
	if err != nil {
		return spec.Path.Value
	}
	return p
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
		faults = append(faults, r.checkImports(f, table)...)
		faults = append(faults, r.checkCalls(f)...)
		if strings.HasPrefix(f.pkg, "cmd/") && !f.test && lines(f.text) > r.MaxMain {
			faults = append(faults, f.fault(1, "%d lines, at most %d: what a program does lives in internal/app", lines(f.text), r.MaxMain))
		}
	}
	faults = append(faults, r.checkPackages(files)...)
	faults = append(faults, r.checkRepetition(files)...)
	slices.SortFunc(faults, func(a, b Fault) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Text, b.Text))
	})
	return faults, nil
}

func load(tree fs.FS) ([]file, error) {
	var files []file
	err := fs.WalkDir(tree, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if base := d.Name(); d.IsDir() {
			if name != "." && (strings.HasPrefix(base, ".") || base == "node_modules" || base == "testdata" || base == "bin") {
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

// checkImports holds a file's imports against the table and the libraries. Tests
// may import what they need: they are no part of the programs.
func (r Rules) checkImports(f *file, t table) []Fault {
	var faults []Fault
	for _, spec := range f.ast.Imports {
		to := importPath(spec)
		if spec.Name != nil && spec.Name.Name == "." {
			faults = append(faults, f.fault(spec.Pos(), "dot import of %s: it hides whose names are used", to))
		}
		if f.test {
			continue
		}
		if ours, ok := strings.CutPrefix(to, r.Module); ok && !t.allows(f.pkg, ours) {
			faults = append(faults, f.fault(spec.Pos(), "imports %s, which the table in internal/arch does not allow", ours))
		}
		for _, l := range r.Libraries {
			if within(to, l.Path) && !slices.Contains(l.By, f.pkg) {
				faults = append(faults, f.fault(spec.Pos(), "imports %s: %s", to, l.Reason))
			}
		}
	}
	return faults
}

// isTooling tells test helpers and benchmarks, which are no part of the programs.
func isTooling(pkg string) bool {
	return pkg == "internal/testenv" || pkg == "bench" || strings.HasPrefix(pkg, "test/")
}

// checkCalls finds uses of functions that have an owner, and sleeping tests.
func (r Rules) checkCalls(f *file) []Fault {
	imports := f.imports()
	_, bubble := imports["synctest"]
	var faults []Fault
	ast.Inspect(f.ast, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		x, ok := sel.X.(*ast.Ident)
		if !ok || imports[x.Name] == nil {
			return true
		}
		name := importPath(imports[x.Name]) + "." + sel.Sel.Name
		if name == "time.Sleep" && f.test && !bubble && f.pkg != "bench" {
			faults = append(faults, f.fault(sel.Pos(), "time.Sleep in a test: poll with testenv.Poll, or use testing/synctest"))
		}
		if f.test || isTooling(f.pkg) {
			return true
		}
		for _, c := range r.Calls {
			if name == c.Name && !slices.Contains(c.By, f.pkg) {
				faults = append(faults, f.fault(sel.Pos(), "uses %s: %s", name, c.Reason))
			}
		}
		return true
	})
	return faults
}

// checkPackages counts lines and methods, and asks for one package comment.
func (r Rules) checkPackages(files []file) []Fault {
	type room struct {
		first    *file
		lines    int
		comments int
	}
	rooms := map[string]*room{}
	methods := map[string]int{}
	var faults []Fault
	for i := range files {
		f := &files[i]
		if f.test {
			continue
		}
		if rooms[f.pkg] == nil {
			rooms[f.pkg] = &room{first: f}
		}
		rooms[f.pkg].lines += lines(f.text)
		if f.ast.Doc != nil {
			rooms[f.pkg].comments++
		}
		for _, decl := range f.ast.Decls {
			fn, ok := decl.(*ast.FuncDecl)
			if !ok || fn.Recv == nil || !slices.ContainsFunc(r.Crowded, func(top string) bool { return within(f.pkg, top) }) {
				continue
			}
			name := f.pkg + "." + receiver(fn.Recv.List[0].Type)
			if methods[name]++; methods[name] == r.MaxMethods+1 {
				faults = append(faults, f.fault(fn.Pos(), "%s has more than %d methods: it is more than one thing", name, r.MaxMethods))
			}
		}
	}
	for pkg, room := range rooms {
		if room.lines > r.MaxPackage {
			faults = append(faults, room.first.fault(1, "package %s has %d lines, at most %d: it is more than one room", pkg, room.lines, r.MaxPackage))
		}
		if room.comments != 1 {
			faults = append(faults, room.first.fault(1, "package %s has %d package comments, want one that says what it is, owns and refuses", pkg, room.comments))
		}
	}
	return faults
}

// within tells whether a package or import path is top or below it.
func within(path, top string) bool { return path == top || strings.HasPrefix(path, top+"/") }

func receiver(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.IndexListExpr:
		return receiver(e.X)
	case *ast.Ident:
		return e.Name
	}
	return "?"
}

func lines(text string) int { return strings.Count(text, "\n") }
