package watch

import (
	"path"
	"strings"

	"github.com/bmatcuk/doublestar/v4"

	"github.com/cove-sandbox/cove/internal/atomicfile"
	"github.com/cove-sandbox/cove/internal/op"
)

// rules decide what is told. Paths are relative to the watched folder.
type rules struct {
	include, exclude []string
}

func newRules(include, exclude []string) (rules, error) {
	for _, g := range append(append([]string{}, include...), exclude...) {
		if !doublestar.ValidatePattern(g) {
			return rules{}, op.Errorf(op.Invalid, "the glob %q is not valid; close every [ and {", g)
		}
	}
	return rules{include, exclude}, nil
}

// hides tells whether a name is left out, be it a file or a folder with all that
// is in it. The temporary files of our own writes are nobody's business.
func (r rules) hides(rel string) bool {
	return atomicfile.IsTemp(path.Base(rel)) || anyMatch(r.exclude, rel)
}

// tells whether a change of the path is told.
func (r rules) tells(rel string) bool {
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
