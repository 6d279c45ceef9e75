package arch

import (
	"go/ast"
	"slices"
	"strings"
)

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
			faults = append(faults, f.fault("sleep", sel.Pos(), "time.Sleep in a test: poll with testenv.Poll, or use testing/synctest"))
		}
		if f.test || isTooling(f.pkg) {
			return true
		}
		for _, c := range r.Calls {
			if name == c.Name && !slices.Contains(c.By, f.pkg) {
				faults = append(faults, f.fault("call", sel.Pos(), "uses %s: %s", name, c.Reason))
			}
		}
		return true
	})
	return faults
}
