package arch

import (
	"go/ast"
	"slices"
	"strings"
)

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
				faults = append(faults, f.fault("method-count", fn.Pos(), "%s has more than %d methods: it is more than one thing", name, r.MaxMethods))
			}
		}
	}
	for pkg, room := range rooms {
		if room.lines > r.MaxPackage {
			faults = append(faults, room.first.fault("package-size", 1, "package %s has %d lines, at most %d: it is more than one room", pkg, room.lines, r.MaxPackage))
		}
		if room.comments != 1 {
			faults = append(faults, room.first.fault("package-comment", 1, "package %s has %d package comments, want one that says what it is, owns and refuses", pkg, room.comments))
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
