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
	c := clocks{f.uses, map[string]bool{}}
	for c.collect(f.ast) { // until no name is added: a name may get the channel from another name
	}
	sleep, timeout := map[ast.Node]bool{}, map[ast.Node]bool{}
	for n, name := range f.uses {
		sleep[n] = slices.Contains(sleepers, name)
	}
	ast.Inspect(f.ast, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.UnaryExpr:
			if t := c.received(n); t != nil {
				sleep[t] = true
			}
		case *ast.RangeStmt:
			if t := c.channel(n.X); t != nil {
				sleep[t] = true
			}
		case *ast.SelectStmt:
			var timers []ast.Node
			events := 0
			for _, clause := range n.Body.List {
				comm := clause.(*ast.CommClause).Comm
				if t := c.received(comm); t != nil {
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

// sleepers are functions that wait for time, or whose result is only good for that.
var sleepers = []string{
	"time.Sleep", "time.Tick", "time.After", "syscall.Nanosleep",
	"golang.org/x/sys/unix.Nanosleep", "golang.org/x/sys/unix.ClockNanosleep",
}

// clocks knows which names of a file hold channels of timers. It follows names, not types:
// a name that holds one in one function holds one everywhere in the file.
type clocks struct {
	uses     map[ast.Node]string
	channels map[string]bool
}

// collect adds the names that the file declares as channels of times, or assigns the channel
// of a timer, and reports whether it added any.
func (c clocks) collect(f *ast.File) bool {
	before := len(c.channels)
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.AssignStmt:
			if len(n.Lhs) == len(n.Rhs) {
				for i := range n.Lhs {
					c.assign(n.Lhs[i], n.Rhs[i])
				}
			}
		case *ast.KeyValueExpr:
			c.assign(n.Key, n.Value)
		case *ast.ValueSpec:
			c.declare(n.Names, n.Type)
			for i := range min(len(n.Names), len(n.Values)) {
				c.assign(n.Names[i], n.Values[i])
			}
		case *ast.Field:
			c.declare(n.Names, n.Type)
		}
		return true
	})
	return len(c.channels) > before
}

func (c clocks) assign(to, value ast.Expr) {
	if name := nameOf(to); name != "" && c.channel(value) != nil {
		c.channels[name] = true
	}
}

func (c clocks) declare(names []*ast.Ident, typ ast.Expr) {
	if ch, ok := typ.(*ast.ChanType); ok && c.uses[ch.Value] == "time.Time" {
		for _, n := range names {
			c.channels[n.Name] = true
		}
	}
}

// nameOf returns the last name of a variable or field, or "".
func nameOf(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return e.Sel.Name
	}
	return ""
}

// channel returns the node that stands for the channel of a timer in an expression, or nil. A
// field named C is one: it has this name in timers and tickers alone.
func (c clocks) channel(e ast.Expr) ast.Node {
	switch n := e.(type) {
	case *ast.ParenExpr:
		return c.channel(n.X)
	case *ast.CallExpr:
		if c.uses[n.Fun] == "time.After" || c.uses[n.Fun] == "time.Tick" {
			return n.Fun
		}
		return nil
	case *ast.SelectorExpr:
		if n.Sel.Name == "C" {
			return n
		}
	}
	if c.channels[nameOf(e)] {
		return e
	}
	return nil
}

// received returns the node of the timer that a statement or an expression receives from, or nil.
func (c clocks) received(n ast.Node) ast.Node {
	switch n := n.(type) {
	case *ast.ExprStmt:
		return c.received(n.X)
	case *ast.AssignStmt:
		return c.received(n.Rhs[0])
	case *ast.ParenExpr:
		return c.received(n.X)
	case *ast.UnaryExpr:
		if n.Op == token.ARROW {
			return c.channel(n.X)
		}
	}
	return nil
}
