package arch

import (
	"go/ast"
	"go/token"
	"slices"
)

// sleeps returns the lines at which a file waits for nothing but time. A timer in a
// select with another case is a timeout, not a sleep. Tests that use testing/synctest
// may sleep: their time is not real.
func (r Rules) sleeps(f *file) []int {
	if _, bubble := f.imports()["synctest"]; slices.Contains(r.Sleep, f.pkg) || bubble && f.test {
		return nil
	}
	sleep, timeout := map[ast.Node]bool{}, map[ast.Node]bool{}
	for n, name := range f.uses {
		sleep[n] = name == "time.Sleep" || name == "time.Tick" || name == "time.After"
	}
	ast.Inspect(f.ast, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.UnaryExpr:
			if t := timer(n, f.uses); t != nil && n.Op == token.ARROW {
				sleep[t] = true
			}
		case *ast.SelectStmt:
			var timers []ast.Node
			events := 0
			for _, c := range n.Body.List {
				comm := c.(*ast.CommClause).Comm
				if t := timer(comm, f.uses); t != nil {
					timers = append(timers, t)
				} else if comm != nil {
					events++
				}
			}
			for _, t := range timers {
				timeout[t] = events > 0
			}
		}
		return true
	})
	var lines []int
	for n := range sleep {
		if sleep[n] && !timeout[n] {
			lines = append(lines, f.line(n.Pos()))
		}
	}
	slices.Sort(lines)
	return lines
}

// timer returns the function of package time whose channel a statement or an
// expression receives from, or nil.
func timer(n ast.Node, uses map[ast.Node]string) ast.Node {
	switch n := n.(type) {
	case *ast.ExprStmt:
		return timer(n.X, uses)
	case *ast.AssignStmt:
		return timer(n.Rhs[0], uses)
	case *ast.UnaryExpr:
		return timer(n.X, uses)
	case *ast.SelectorExpr: // time.NewTimer(d).C
		return timer(n.X, uses)
	case *ast.CallExpr:
		if name := uses[n.Fun]; name == "time.After" || name == "time.NewTimer" || name == "time.NewTicker" {
			return n.Fun
		}
	}
	return nil
}
