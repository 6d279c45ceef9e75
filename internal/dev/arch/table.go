package arch

import (
	"fmt"
	"slices"
	"strings"
)

// table is the parsed list of packages.
type table map[string]entry

type entry struct {
	section int
	among   bool // may import its own section
	to      []string
}

// allows reports whether one package may import another.
func (t table) allows(from, to string) bool {
	return slices.Contains(t[from].to, to)
}

// parseTable reads the list and refuses what contradicts its order: an import
// goes down, never up or sideways, and the two halves never meet.
func parseTable(text string) (table, []Fault) {
	t := table{}
	var faults []Fault
	refuse := func(format string, args ...any) {
		faults = append(faults, Fault{Rule: "table", File: "the table of packages", Text: fmt.Sprintf(format, args...)})
	}
	section, among := 0, false
	for line := range strings.SplitSeq(strings.ReplaceAll(text, "\n\t", " "), "\n") {
		if title, ok := strings.CutPrefix(line, "#"); ok {
			section++
			among = strings.HasSuffix(title, "+")
			continue
		}
		if strings.TrimSpace(line) == "" {
			continue
		}
		name, list, ok := strings.Cut(line, ":")
		from := absolute(name)
		if _, twice := t[from]; !ok || twice {
			refuse("%q is not of the form package: imports, or is a duplicate", line)
			continue
		}
		e := entry{section: section, among: among}
		for _, short := range strings.Fields(list) {
			to := absolute(short)
			below, known := t[to]
			switch {
			case !known:
				refuse("%s may not import %s, which is not above it in the table", from, to)
			case below.section == section && !among:
				refuse("%s may not import %s: siblings never import each other", from, to)
			case half(from) != "" && half(to) != "" && half(from) != half(to):
				refuse("%s may not import %s: sandbox and hub never meet", from, to)
			}
			e.to = append(e.to, to)
		}
		t[from] = e
	}
	return t, faults
}

func absolute(short string) string {
	if rooted, ok := strings.CutPrefix(strings.TrimSpace(short), "/"); ok {
		return rooted
	}
	return "internal/" + strings.TrimSpace(short)
}

// half returns the half of the system that a package belongs to, if any.
func half(pkg string) string {
	switch {
	case strings.HasPrefix(pkg, "internal/guest/"):
		return "sandbox"
	case strings.HasPrefix(pkg, "internal/hub"), strings.HasPrefix(pkg, "internal/provider/"):
		return "hub"
	}
	return ""
}

// stale finds packages that are not in the list, and imports that it allows but no
// package has.
func (t table) stale(files []file) []Fault {
	first := map[string]*file{}
	used := map[string]map[string]bool{}
	for i := range files {
		f := &files[i]
		if first[f.pkg] == nil {
			first[f.pkg], used[f.pkg] = f, map[string]bool{}
		}
		if f.test {
			continue
		}
		for _, spec := range f.ast.Imports {
			used[f.pkg][importPath(spec)] = true
		}
	}
	var faults []Fault
	for pkg, f := range first {
		if _, ok := t[pkg]; !ok {
			faults = append(faults, f.fault("table", 1, "package %s is not in the table of packages: add it with what it may import", pkg))
		}
	}
	for pkg, e := range t {
		refuse := func(text string) {
			faults = append(faults, Fault{Rule: "table", File: "the table of packages", Text: text})
		}
		if first[pkg] == nil {
			refuse("there is no package " + pkg)
			continue
		}
		for _, to := range e.to {
			if !slices.ContainsFunc(keys(used[pkg]), func(p string) bool { return strings.HasSuffix(p, "/"+to) }) {
				refuse(pkg + " does not import " + to + ": remove it")
			}
		}
	}
	return faults
}

func keys(m map[string]bool) []string {
	var out []string
	for k := range m {
		out = append(out, k)
	}
	return out
}

// testTable lists what the tests of a package import beyond what the package may
// import, and whether they do.
type testTable map[string]map[string]bool

func parseTests(text string) testTable {
	t := testTable{}
	for line := range strings.Lines(strings.ReplaceAll(text, "\n\t", " ")) {
		if name, list, ok := strings.Cut(line, ":"); ok {
			t[absolute(name)] = map[string]bool{}
			for _, short := range strings.Fields(list) {
				t[absolute(name)][absolute(short)] = false
			}
		}
	}
	return t
}

// allow reports whether the tests of a package may import another one, and records that they do.
func (t testTable) allow(from, to string) bool {
	_, listed := t[from][to]
	if listed {
		t[from][to] = true
	}
	return listed || to == from || to == "internal/dev/testenv"
}

// stale finds entries that no test needs.
func (t testTable) stale() []Fault {
	var faults []Fault
	for from, list := range t {
		for to, used := range list {
			if !used {
				text := "tests of " + from + " need no permission for " + to + ": remove it"
				faults = append(faults, Fault{Rule: "test-imports", File: "the table of tests", Text: text})
			}
		}
	}
	return faults
}
