package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestEveryTestHasALane: the tests that make test skips run in make test-engines.
func TestEveryTestHasALane(t *testing.T) {
	found := 0
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && slices.Contains([]string{"node_modules", ".tools", ".git", "testdata"}, d.Name()) {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		pkg := "." + strings.TrimPrefix(filepath.Dir(path), "../..")
		for _, name := range skipped(t, path) {
			found++
			if !slices.ContainsFunc(engineSteps, func(s step) bool { return s.runs(pkg, name) }) {
				t.Errorf("%s %s calls testenv.Engine, GVisor or Long, but no step of make test-engines runs it", pkg, name)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if found < 20 {
		t.Errorf("found %d tests of make test-engines, want at least 20", found)
	}
}

// runs reports whether a step runs a test.
func (s step) runs(pkg, test string) bool {
	inPackages := slices.ContainsFunc(s.packages, func(p string) bool {
		tree, all := strings.CutSuffix(p, "/...")
		return p == pkg || all && strings.HasPrefix(pkg+"/", tree+"/")
	})
	top, _, _ := strings.Cut(s.run, "/")
	return inPackages && regexp.MustCompile(top).MatchString(test)
}

// skipped lists the tests of a file that call testenv.Engine, GVisor or Long.
func skipped(t *testing.T, path string) []string {
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, decl := range file.Decls {
		f, ok := decl.(*ast.FuncDecl)
		if !ok || !strings.HasPrefix(f.Name.Name, "Test") {
			continue
		}
		ast.Inspect(f, func(n ast.Node) bool {
			call, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			from, ok := call.X.(*ast.Ident)
			if ok && from.Name == "testenv" && slices.Contains([]string{"Engine", "GVisor", "Long"}, call.Sel.Name) {
				names = append(names, f.Name.Name)
			}
			return true
		})
	}
	return slices.Compact(names)
}
