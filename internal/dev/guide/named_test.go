package guide

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestNamedTestsExist: docs/security.md names the test behind each promise, and other pages name
// tests, too. Each of them exists.
func TestNamedTestsExist(t *testing.T) {
	t.Parallel()
	root := os.DirFS("../../..")
	exist := map[string]bool{}
	define := regexp.MustCompile(`(?m)^func (Test\w+|Fuzz\w+|Benchmark\w+)\(`)
	err := fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "node_modules" || name != "." && strings.HasPrefix(d.Name(), ".")):
			return fs.SkipDir
		case !strings.HasSuffix(name, "_test.go"):
			return nil
		}
		text, err := fs.ReadFile(root, name)
		for _, m := range define.FindAllSubmatch(text, -1) {
			exist[string(m[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	named := 0
	use := regexp.MustCompile("`((?:Test|Fuzz|Benchmark)[A-Z]\\w*)")
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md"} {
		pages, err := filepath.Glob(filepath.Join("../../..", pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, page := range pages {
			text, err := os.ReadFile(page)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range use.FindAllSubmatch(text, -1) {
				if named++; !exist[string(m[1])] {
					t.Errorf("%s names %s: got no test of that name", filepath.Base(page), m[1])
				}
			}
		}
	}
	if named < 20 {
		t.Errorf("got %d names of tests in the documentation, want at least 20", named)
	}
}
