package arch

import (
	"go/ast"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Library is an import path, with everything below it, that only some packages import.
type Library struct {
	Path   string
	By     []string // packages that import it, with their tests
	Tests  []string // packages whose tests import it
	Reason string
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

// checkImports compares the imports of all files with the tables of packages, tests
// and libraries.
func (r Rules) checkImports(files []file, t table) []Fault {
	var faults []Fault
	tests := parseTests(r.Tests)
	used := map[permission]bool{}
	for i := range files {
		f := &files[i]
		for _, spec := range f.ast.Imports {
			to := importPath(spec)
			if spec.Name != nil && spec.Name.Name == "." {
				faults = append(faults, f.fault("dot-import", spec.Pos(), "dot import of %s: it hides the package of a name", to))
			}
			ours, own := strings.CutPrefix(to, r.Module)
			switch {
			case !own:
				if reason := r.refuses(f, to, used); reason != "" {
					faults = append(faults, f.fault("library", spec.Pos(), "imports %s: %s", to, reason))
				}
			case t.allows(f.pkg, ours):
			case !f.test:
				faults = append(faults, f.fault("imports", spec.Pos(), "imports %s: the table of packages does not allow it", ours))
			case !tests.allow(f.pkg, ours):
				faults = append(faults, f.fault("test-imports", spec.Pos(), "imports %s: the table of tests does not allow it", ours))
			}
		}
	}
	return slices.Concat(faults, tests.stale(), r.staleLibraries(used))
}

// permission is an entry of a list of a library.
type permission struct{ library, kind, entry string }

// refuses returns why a file may not import a library, and records which permission
// allows it.
func (r Rules) refuses(f *file, to string, used map[permission]bool) string {
	i := slices.IndexFunc(r.Libraries, func(l Library) bool { return within(to, l.Path) })
	if i < 0 {
		if host, _, _ := strings.Cut(to, "/"); strings.Contains(host, ".") {
			return "the table of libraries does not list it"
		}
		return ""
	}
	l := r.Libraries[i]
	for _, entry := range l.By {
		if covers(entry, f.pkg) {
			used[permission{l.Path, "programs", entry}] = true
			return ""
		}
	}
	for _, entry := range l.Tests {
		if f.test && covers(entry, f.pkg) {
			used[permission{l.Path, "tests", entry}] = true
			return ""
		}
	}
	return l.Reason
}

// staleLibraries finds permissions that no file needs.
func (r Rules) staleLibraries(used map[permission]bool) []Fault {
	var faults []Fault
	for i, l := range r.Libraries {
		for kind, entries := range map[string][]string{"programs": l.By, "tests": l.Tests} {
			for _, entry := range entries {
				if !used[permission{l.Path, kind, entry}] {
					text := entry + " does not import " + l.Path + ": remove it from the list"
					faults = append(faults, Fault{"library", "the table of libraries", i + 1, text})
				}
			}
		}
	}
	return faults
}

// covers reports whether an entry of a list, which may end in "...", includes a package.
func covers(entry, pkg string) bool {
	top, group := strings.CutSuffix(entry, "...")
	return entry == pkg || group && (top == "" || within(pkg, strings.TrimSuffix(top, "/")))
}

// within reports whether a package or import path is top or below it.
func within(path, top string) bool { return path == top || strings.HasPrefix(path, top+"/") }
