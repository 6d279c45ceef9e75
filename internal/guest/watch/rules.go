package watch

import (
	"path"
	"strings"

	"github.com/bmatcuk/doublestar/v4"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/filesystem/atomicfile"
)

// rules select the changes to report. Paths are relative to the watched folder.
type rules struct {
	include, exclude []string
}

func newRules(include, exclude []string) (rules, error) {
	for _, g := range append(append([]string{}, include...), exclude...) {
		if !doublestar.ValidatePattern(g) {
			return rules{}, op.Errorf(op.Invalid, "invalid glob %q; close every [ and {", g)
		}
	}
	return rules{include, exclude}, nil
}

// excludes reports whether a file, or a folder with all its content, is excluded. Temporary files of
// package atomicfile are always excluded.
func (r rules) excludes(rel string) bool {
	return atomicfile.IsTemp(path.Base(rel)) || anyMatch(r.exclude, rel)
}

// includes reports whether changes of a path are reported.
func (r rules) includes(rel string) bool {
	return len(r.include) == 0 || anyMatch(r.include, rel)
}

func anyMatch(globs []string, rel string) bool {
	for _, g := range globs {
		what := rel
		if !strings.Contains(g, "/") {
			what = path.Base(rel)
		}
		if ok, err := doublestar.Match(strings.TrimSuffix(g, "/"), what); err == nil && ok {
			return true
		}
	}
	return false
}
