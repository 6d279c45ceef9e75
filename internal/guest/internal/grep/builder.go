package grep

import "strings"

// builder assembles the matches of one file from its lines in order: matching lines and the lines
// around them.
type builder struct {
	file          string
	before, after int
	skip          int // matches on earlier pages, which are only counted

	matches []Match
	count   int // including skipped ones
	bytes   int

	recent []line // the last lines, at most before
	open   []int  // matches that need more lines after them
}

type line struct {
	n    int
	text string
}

// addContext adds a line that does not match.
func (b *builder) addContext(n int, text string) {
	if b.before+b.after > 0 {
		b.addLine(line{n, cleanLine(text)})
	}
}

// addMatch adds the lines of one match, which starts at the nth line of the file.
func (b *builder) addMatch(n int, lines []string) {
	b.count++
	wanted := b.count > b.skip
	m := Match{File: b.file, Line: n}
	if wanted {
		for _, l := range b.recent {
			if l.n >= n-b.before && l.n < n {
				m.Before = append(m.Before, l.text)
			}
		}
	}
	clean := make([]string, len(lines))
	for i, l := range lines {
		clean[i] = cleanLine(l)
		b.addLine(line{n + i, clean[i]})
	}
	if !wanted {
		return
	}
	m.Text = cleanLine(strings.Join(clean, "\n"))
	b.bytes += len(m.Text) + 64
	for _, l := range m.Before {
		b.bytes += len(l)
	}
	b.matches = append(b.matches, m)
	if b.after > 0 {
		b.open = append(b.open, len(b.matches)-1)
	}
}

// addLine adds a line to the open matches before it and keeps it for those after it.
func (b *builder) addLine(l line) {
	open := b.open[:0]
	for _, i := range b.open {
		m := &b.matches[i]
		last := m.Line + strings.Count(m.Text, "\n")
		if l.n > last && l.n <= last+b.after {
			m.After = append(m.After, l.text)
			b.bytes += len(l.text)
		}
		if l.n < last+b.after {
			open = append(open, i)
		}
	}
	b.open = open
	if b.before == 0 {
		return
	}
	if len(b.recent) == b.before {
		b.recent = append(b.recent[:0], b.recent[1:]...)
	}
	b.recent = append(b.recent, l)
}
