package arch

import (
	"go/ast"
	"path"
	"slices"
	"strconv"
	"strings"
)

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

// checkImports holds a file's imports against the table and the libraries. Tests
// may import what they need: they are no part of the programs.
func (r Rules) checkImports(f *file, t table) []Fault {
	var faults []Fault
	for _, spec := range f.ast.Imports {
		to := importPath(spec)
		if spec.Name != nil && spec.Name.Name == "." {
			faults = append(faults, f.fault("dot-import", spec.Pos(), "dot import of %s: it hides whose names are used", to))
		}
		if f.test {
			continue
		}
		if ours, ok := strings.CutPrefix(to, r.Module); ok && !t.allows(f.pkg, ours) {
			faults = append(faults, f.fault("imports", spec.Pos(), "imports %s, which the table in internal/arch does not allow", ours))
		}
		for _, l := range r.Libraries {
			if within(to, l.Path) && !slices.Contains(l.By, f.pkg) {
				faults = append(faults, f.fault("library", spec.Pos(), "imports %s: %s", to, l.Reason))
			}
		}
	}
	return faults
}

// within reports whether a package or import path is top or below it.
func within(path, top string) bool { return path == top || strings.HasPrefix(path, top+"/") }
