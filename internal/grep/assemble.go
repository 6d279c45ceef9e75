package grep

import "strings"

// assembler builds the matches of one file from its lines, which come in order:
// those that match and those around them.
type assembler struct {
	file          string
	before, after int
	skip          int // matches that only count: they stand on earlier pages

	matches []Match
	count   int // with the skipped ones
	bytes   int

	recent []line // the last lines, as many as before asks for
	open   []int  // matches that still want lines after them
}

type line struct {
	n    int
	text string
}

// context takes a line that does not match.
func (a *assembler) context(n int, text string) {
	if a.before+a.after == 0 {
		return
	}
	a.pass(line{n, show(text)})
}

// match takes the lines of one match, the first of which is the nth.
func (a *assembler) match(n int, lines []string) {
	a.count++
	wanted := a.count > a.skip
	m := Match{File: a.file, Line: n}
	if wanted {
		for _, l := range a.recent {
			if l.n >= n-a.before && l.n < n {
				m.Before = append(m.Before, l.text)
			}
		}
	}
	shown := make([]string, len(lines))
	for i, l := range lines {
		shown[i] = show(l)
		a.pass(line{n + i, shown[i]})
	}
	if !wanted {
		return
	}
	m.Text = show(strings.Join(shown, "\n"))
	a.bytes += len(m.Text) + 64
	for _, b := range m.Before {
		a.bytes += len(b)
	}
	a.matches = append(a.matches, m)
	if a.after > 0 {
		a.open = append(a.open, len(a.matches)-1)
	}
}

// pass shows a line to the matches before it and keeps it for those after it.
func (a *assembler) pass(l line) {
	still := a.open[:0]
	for _, i := range a.open {
		m := &a.matches[i]
		last := m.Line + strings.Count(m.Text, "\n")
		if l.n > last && l.n <= last+a.after {
			m.After = append(m.After, l.text)
			a.bytes += len(l.text)
		}
		if l.n < last+a.after {
			still = append(still, i)
		}
	}
	a.open = still
	if a.before == 0 {
		return
	}
	if len(a.recent) == a.before {
		a.recent = append(a.recent[:0], a.recent[1:]...)
	}
	a.recent = append(a.recent, l)
}

// span is where a match stands in a text of several lines.
type span struct{ start, end int }

// split cuts a text whose lines hold the given spans into groups of lines: spans
// that share a line are one match. It calls yield with the number of lines
// before the group and the group's lines.
func split(text string, spans []span, yield func(before int, lines []string)) {
	lines := strings.SplitAfter(text, "\n")
	if lines[len(lines)-1] == "" && len(lines) > 1 {
		lines = lines[:len(lines)-1]
	}
	starts := make([]int, len(lines))
	for i, at := 1, len(lines[0]); i < len(lines); i++ {
		starts[i] = at
		at += len(lines[i])
	}
	at := 0 // spans are in order, so the search for their lines never goes back
	lineOf := func(offset int) int {
		for at+1 < len(lines) && starts[at+1] <= offset {
			at++
		}
		return at
	}
	first, last := -1, -1
	for _, s := range spans {
		from := lineOf(s.start)
		to := lineOf(max(s.start, s.end-1))
		switch {
		case first < 0:
			first, last = from, to
		case from <= last:
			last = max(last, to)
		default:
			yield(first, lines[first:last+1])
			first, last = from, to
		}
	}
	if first >= 0 {
		yield(first, lines[first:last+1])
	}
}
