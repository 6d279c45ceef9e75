package arch

import (
	"go/ast"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// measure returns the size of everything that has a limit. Tests do not count for the
// size of a package and the methods of a type. Generated code is exempt from the limits
// of functions and lines.
func (r Rules) measure(files []file) sizes {
	found := sizes{}
	for i := range files {
		f := &files[i]
		if !f.test {
			found.add("package-size", f.pkg, f, 1, lines(f.text))
			if strings.HasPrefix(f.pkg, "cmd/") {
				found.add("main-size", f.name, f, 1, lines(f.text))
			}
			r.measureTypes(f, found)
		}
		if !ast.IsGenerated(f.ast) {
			measureFunctions(f, found)
			r.measureLines(f, found)
		}
		for _, line := range r.sleeps(f) {
			found.add("sleep", f.name, f, line, 1)
		}
	}
	return found
}

// measureLines counts the lines that are too long.
func (r Rules) measureLines(f *file, found sizes) {
	number := 0
	for line := range strings.Lines(f.text) {
		if number++; utf8.RuneCountInString(strings.TrimSuffix(line, "\n")) > r.MaxColumns {
			found.add("line-length", f.name, f, number, 1)
		}
	}
}

// measureTypes counts the methods of types.
func (r Rules) measureTypes(f *file, found sizes) {
	if slices.ContainsFunc(r.ManyMethods, func(entry string) bool { return covers(entry, f.pkg) }) {
		return
	}
	for _, decl := range f.ast.Decls {
		if fn, ok := decl.(*ast.FuncDecl); ok && fn.Recv != nil {
			found.add("method-count", f.pkg+"."+receiver(fn.Recv.List[0].Type), f, f.line(fn.Pos()), 1)
		}
	}
}

// measureFunctions counts the lines of functions, and of function literals outside of
// functions.
func measureFunctions(f *file, found sizes) {
	add := func(name string, n ast.Node) {
		found.add("function-size", f.name+":"+name, f, f.line(n.Pos()), f.line(n.End())-f.line(n.Pos())+1)
	}
	for _, decl := range f.ast.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			name := d.Name.Name
			if d.Recv != nil {
				name = receiver(d.Recv.List[0].Type) + "." + name
			}
			add(name, d)
		case *ast.GenDecl:
			ast.Inspect(d, func(n ast.Node) bool {
				_, ok := n.(*ast.FuncLit)
				if ok {
					add("func@"+strconv.Itoa(f.line(n.Pos())), n)
				}
				return !ok
			})
		}
	}
}

// checkComments requires one package comment in each package.
func checkComments(files []file) []Fault {
	first, comments := map[string]*file{}, map[string]int{}
	for i := range files {
		f := &files[i]
		if f.test {
			continue
		}
		if first[f.pkg] == nil {
			first[f.pkg] = f
		}
		if f.ast.Doc != nil {
			comments[f.pkg]++
		}
	}
	var faults []Fault
	for pkg, f := range first {
		if n := comments[pkg]; n != 1 {
			faults = append(faults, f.fault("package-comment", 1, "package %s has %d package comments, want one", pkg, n))
		}
	}
	return faults
}

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
