package arch

import (
	"fmt"
	"io/fs"
	"slices"
	"strings"
)

// Limit is how large the subjects of a rule may be.
type Limit struct {
	Max    int
	Unit   string
	Advice string
}

// subject is what a rule measures: a package, a type, a function or a file.
type subject struct{ rule, name string }

// size is how large a subject is.
type size struct {
	n  int
	at []spot // where its parts are, or each thing that is counted
}

// spot is a line of a file.
type spot struct {
	file string
	line int
}

// sizes maps subjects to their sizes.
type sizes map[subject]*size

func (s sizes) add(rule, name string, f *file, line, n int) {
	key := subject{rule, name}
	if s[key] == nil {
		s[key] = &size{}
	}
	s[key].n += n
	s[key].at = append(s[key].at, spot{f.name, line})
}

// exceptions maps subjects to the size that they may not exceed.
type exceptions map[subject]int

// parseExceptions reads lines of the form "rule subject size".
func parseExceptions(text string) (exceptions, error) {
	x := exceptions{}
	for line := range strings.Lines(text) {
		var key subject
		var n int
		if _, err := fmt.Sscanf(line, "%s %s %d\n", &key.rule, &key.name, &n); err != nil {
			return nil, fmt.Errorf("read exception %q: %w", line, err)
		}
		x[key] = n
	}
	return x, nil
}

// lowerExceptions returns the exceptions of rules as a tree needs them today.
func lowerExceptions(tree fs.FS, r Rules) (string, error) {
	files, err := load(tree)
	if err != nil {
		return "", err
	}
	x, err := parseExceptions(r.Exceptions)
	if err != nil {
		return "", err
	}
	found := r.measure(files)
	if err := r.measureScripts(tree, found); err != nil {
		return "", err
	}
	return x.lower(found, r.Limits), nil
}

// lower returns the list of exceptions without those that are no longer needed, and
// with the present sizes of those that have shrunk. It never adds or raises one.
func (x exceptions) lower(found sizes, limits map[string]Limit) string {
	var out []string
	for key, n := range x {
		if s := found[key]; s != nil && s.n > limits[key.rule].Max {
			out = append(out, fmt.Sprintf("%s %s %d\n", key.rule, key.name, min(n, s.n)))
		}
	}
	slices.Sort(out)
	return strings.Join(out, "")
}

// check compares sizes with their limits and exceptions. An exception must state the
// present size, so that the list only shrinks.
func (x exceptions) check(found sizes, limits map[string]Limit) []Fault {
	var faults []Fault
	for key, s := range found {
		l, except := limits[key.rule], x[key]
		most := max(l.Max, except)
		var text string
		switch {
		case s.n > most && except > 0:
			text = fmt.Sprintf("%s: number of %s is %d, and its exception of %d may only shrink; %s", key.name, l.Unit, s.n, except, l.Advice)
		case s.n > most:
			text = fmt.Sprintf("%s: number of %s is %d, at most %d; %s", key.name, l.Unit, s.n, l.Max, l.Advice)
		case s.n < except:
			text = fmt.Sprintf("%s: number of %s is %d, its exception %d; run make gen, which lowers it", key.name, l.Unit, s.n, except)
		default:
			continue
		}
		at := s.at[min(most, len(s.at)-1)]
		faults = append(faults, Fault{key.rule, at.file, at.line, text})
	}
	for key := range x {
		if found[key] == nil {
			faults = append(faults, Fault{key.rule, key.name, 0, "has an exception but nothing to count; run make gen, which removes it"})
		}
	}
	return faults
}
