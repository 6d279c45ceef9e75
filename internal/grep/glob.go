package grep

import (
	"bufio"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/bmatcuk/doublestar/v4"
)

// rule is one line of a .gitignore file, or one glob of the same form.
type rule struct {
	glob    string // matched against the path below the rule's folder
	negated bool
	dirOnly bool
}

func parseRule(text string) (rule, bool) {
	var r rule
	if text, r.negated = strings.CutPrefix(text, "!"); text == "" {
		return r, false
	}
	text = strings.TrimPrefix(text, `\`)
	text, r.dirOnly = strings.CutSuffix(text, "/")
	anchored := strings.Contains(text, "/")
	r.glob = strings.TrimPrefix(text, "/")
	if !anchored {
		r.glob = "**/" + r.glob
	}
	return r, r.glob != "" && doublestar.ValidatePattern(r.glob)
}

func (r rule) matches(rel string, dir bool) bool {
	if r.dirOnly && !dir {
		return false
	}
	// "x/**" means what is in x, not x itself.
	if strings.HasSuffix(r.glob, "/**") && !strings.HasPrefix(r.glob, "**") {
		if ok, err := doublestar.Match(strings.TrimSuffix(r.glob, "/**"), rel); err == nil && ok {
			return false
		}
	}
	ok, err := doublestar.Match(r.glob, rel)
	return err == nil && ok
}

// verdict is what rules say about a path.
type verdict int

const (
	silentOn verdict = iota
	drop
	keep
)

// judge asks rules in order; the last one that matches decides.
func judge(rules []rule, rel string, dir bool) verdict {
	for i := len(rules) - 1; i >= 0; i-- {
		if rules[i].matches(rel, dir) {
			if rules[i].negated {
				return keep
			}
			return drop
		}
	}
	return silentOn
}

// ignores are the rules of one folder and those above it, up to the root of the
// search.
type ignores struct {
	up    *ignores
	dir   string // relative to the root, "" for the root itself
	rules []rule
}

// maxIgnoreFile bounds an ignore file.
const maxIgnoreFile = 1 << 20

// below reads the ignore files of a folder.
func (i *ignores) below(root, rel string) *ignores {
	var rules []rule
	// .ignore comes second: its rules beat those of .gitignore.
	for _, name := range []string{".gitignore", ".ignore"} {
		rules = append(rules, readRules(filepath.Join(root, rel, name))...)
	}
	if len(rules) == 0 {
		return i
	}
	return &ignores{up: i, dir: rel, rules: rules}
}

func readRules(file string) []rule {
	if info, err := os.Stat(file); err != nil || !info.Mode().IsRegular() {
		return nil
	}
	f, err := os.Open(file)
	if err != nil {
		return nil
	}
	defer f.Close()
	var rules []rule
	lines := bufio.NewScanner(io.LimitReader(f, maxIgnoreFile))
	for lines.Scan() {
		text := strings.TrimRight(lines.Text(), " \t\r")
		if strings.HasPrefix(text, "#") {
			continue
		}
		if r, ok := parseRule(text); ok {
			rules = append(rules, r)
		}
	}
	return rules
}

func (i *ignores) judge(rel string, dir bool) verdict {
	for ; i != nil; i = i.up {
		below := rel
		if i.dir != "" {
			below = strings.TrimPrefix(rel, i.dir+"/")
		}
		if v := judge(i.rules, below, dir); v != silentOn {
			return v
		}
	}
	return silentOn
}

// filter decides which files of a tree are searched, by ripgrep's precedence:
// globs of the query, ignore files, types, hidden names.
type filter struct {
	globs     []rule // in the sense of .gitignore: negated means excluded
	including bool
	kinds     []string
	hidden    bool
}

func newFilter(q Query) (filter, error) {
	f := filter{hidden: q.Hidden}
	add := func(text string) error {
		r, ok := parseRule(text)
		if !ok {
			return &PatternError{"the glob " + text + " is malformed"}
		}
		f.globs = append(f.globs, r)
		f.including = f.including || !r.negated
		return nil
	}
	for _, g := range q.Include {
		if err := add(g); err != nil {
			return f, err
		}
	}
	for _, g := range q.Exclude {
		if err := add("!" + strings.TrimPrefix(g, "!")); err != nil {
			return f, err
		}
	}
	for _, t := range q.types() {
		globs, ok := kinds[t]
		if !ok {
			return f, &PatternError{"unrecognized file type: " + t + "; use include instead, such as *." + t}
		}
		f.kinds = append(f.kinds, globs...)
	}
	return f, nil
}

func (f filter) wants(rel string, dir bool, ign *ignores) bool {
	switch judge(f.globs, rel, dir) {
	case drop: // a glob without "!" matches: it is what the query includes
		return true
	case keep:
		return false
	default:
		if f.including && !dir {
			return false
		}
	}
	listed := false
	switch ign.judge(rel, dir) {
	case drop:
		return false
	case keep:
		listed = true
	}
	name := path.Base(rel)
	if len(f.kinds) > 0 && !dir {
		if !matchesAny(f.kinds, name) {
			return false
		}
		listed = true
	}
	return listed || f.hidden || !strings.HasPrefix(name, ".")
}

func matchesAny(globs []string, name string) bool {
	for _, g := range globs {
		if ok, err := doublestar.Match(g, name); err == nil && ok {
			return true
		}
	}
	return false
}
