package arch

import (
	"go/ast"
	"path"
	"slices"
	"strings"
)

// Call names functions and constants that only some packages may use. Tests are free
// to use them.
type Call struct {
	Rule   string
	Names  string   // patterns of import path, dot, name; syscall includes golang.org/x/sys
	By     []string // packages that use them
	Reason string
}

// isTooling reports whether a package helps tests or measures, and is part of no program.
func isTooling(pkg string) bool {
	return pkg == "internal/dev/testenv" || pkg == "bench" || strings.HasPrefix(pkg, "test/")
}

// checkCalls finds uses of functions that belong to other packages, and packages that
// may use a function but do not.
func (r Rules) checkCalls(files []file) []Fault {
	var faults []Fault
	used := map[int][]string{} // packages, by the index of a call
	matches := map[string][]int{}
	for i := range files {
		f := &files[i]
		if f.test || isTooling(f.pkg) {
			continue
		}
		for use, name := range f.uses {
			which, ok := matches[name]
			if !ok {
				which = r.callsOf(name)
				matches[name] = which
			}
			for _, i := range which {
				used[i] = append(used[i], f.pkg)
				if c := r.Calls[i]; !slices.Contains(c.By, f.pkg) {
					faults = append(faults, f.fault(c.Rule, use.Pos(), "uses %s: %s", name, c.Reason))
				}
			}
		}
	}
	for i, c := range r.Calls {
		for _, pkg := range c.By {
			if !slices.Contains(used[i], pkg) {
				text := pkg + " uses none of " + c.Names + ": remove it from the list"
				faults = append(faults, Fault{c.Rule, "the table of calls", i + 1, text})
			}
		}
	}
	return faults
}

// callsOf returns the entries of the table that a name matches.
func (r Rules) callsOf(name string) []int {
	if strings.HasPrefix(name, "golang.org/x/sys/") {
		name = "syscall" + path.Ext(name)
	}
	var which []int
	for i, c := range r.Calls {
		for _, pattern := range strings.Fields(c.Names) {
			if ok, err := path.Match(pattern, name); ok && err == nil {
				which = append(which, i)
			}
		}
	}
	return which
}

// zeroReads is a type whose zero value reads the environment: an http.Client without a
// transport uses the default transport.
const zeroReads = "net/http.Client"

// usesOf maps nodes to the names of other packages that they refer to. A literal of a
// type, unless it sets a transport, has the name of the type with "{}". So has every other
// use of zeroReads as a value: a variable, a field, or an argument of new. A call that
// leaves the choice of a folder to the environment has the name of the function with "()".
func usesOf(f *file) map[ast.Node]string {
	imports := f.imports()
	resolve := func(e ast.Expr) string {
		if sel, ok := e.(*ast.SelectorExpr); ok {
			if x, ok := sel.X.(*ast.Ident); ok && imports[x.Name] != nil {
				return importPath(imports[x.Name]) + "." + sel.Sel.Name
			}
		}
		return ""
	}
	out := map[ast.Node]string{}
	noValue := map[ast.Node]bool{} // pointers to types, and types of literals
	ast.Inspect(f.ast, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			if name := resolve(n); name == zeroReads && !noValue[n] {
				out[n] = name + "{}"
			} else if name != "" {
				out[n] = name
			}
		case *ast.StarExpr:
			noValue[n.X] = true
		case *ast.CompositeLit:
			noValue[n.Type] = true
			if name := resolve(n.Type); name != "" && !slices.ContainsFunc(n.Elts, isTransport) {
				out[n] = name + "{}"
			}
		case *ast.CallExpr:
			if name := resolve(n.Fun); name != "" && len(n.Args) > 0 && isEmptyString(n.Args[0]) {
				out[n] = name + "()"
			}
		}
		return true
	})
	return out
}

func isTransport(e ast.Expr) bool {
	pair, ok := e.(*ast.KeyValueExpr)
	return ok && nameOf(pair.Key) == "Transport" && nameOf(pair.Value) != "nil"
}

func isEmptyString(e ast.Expr) bool {
	lit, ok := e.(*ast.BasicLit)
	return ok && (lit.Value == `""` || lit.Value == "``")
}
