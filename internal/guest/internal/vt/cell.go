package vt

import (
	"slices"
	"strings"
	"unicode/utf8"
)

// cell is one place of the screen: 0 when nothing was ever printed there (or it was erased), else a character
// with flags. Flags make the value larger than any character, so a plain comparison finds the common case.
type cell uint32

const (
	valueMask cell = 1<<21 - 1
	grouped   cell = 1 << 21 // the value is the number of a cluster, not a character
	spill     cell = 1 << 22 // belongs to the character left of it: a wide one's second half, a tab's body
	carry     cell = 1 << 23 // holds only text without width; the next character printed here joins it
	old       cell = 1 << 24 // printed before the last Mark
)

// row is one line of the screen.
type row struct {
	cells []cell // as many as the screen has columns
	used  int    // cells from here on are 0
	cont  bool   // the row continues the one above it: a line that reached the right edge
	fresh bool   // something may have been printed since the last Mark
}

func (r *row) clear() {
	clear(r.cells[:r.used])
	r.used, r.cont, r.fresh = 0, false, false
}

// age makes everything in the row belong to the time before the Mark.
func (r *row) age() {
	if !r.fresh {
		return
	}
	r.fresh = false
	for i, c := range r.cells[:r.used] {
		if c != 0 {
			r.cells[i] = c | old
		}
	}
}

// written tells whether the row holds text printed since the last Mark.
func (r *row) written() bool {
	if !r.fresh {
		return false
	}
	for _, c := range r.cells[:r.used] {
		if c != 0 && c&old == 0 {
			return true
		}
	}
	return false
}

// split prepares cells [from, to) for being replaced: a wide character or tab that lies across an edge
// dissolves, since half of one cannot be shown.
func (r *row) split(from, to int) {
	if from >= r.used {
		return
	}
	for i, inside := from, r.cells[from]&spill != 0; inside; {
		i--
		inside = r.cells[i]&spill != 0
		r.cells[i] = 0
	}
	for i := to; i < r.used && r.cells[i]&spill != 0; i++ {
		r.cells[i] = 0
	}
}

// grid is the rows of a screen as a ring, so that scrolling all of it moves no row.
type grid struct {
	rows []*row
	base int
}

// clear empties the grid, and makes its rows when it has none.
func (g *grid) clear(cols, rows int) {
	for _, r := range g.rows {
		r.clear()
	}
	g.grow(cols, rows)
}

// grow adds empty rows up to that many.
func (g *grid) grow(cols, rows int) {
	for len(g.rows) < rows {
		g.rows = append(g.rows, newRow(cols))
	}
}

func newRow(cols int) *row { return &row{cells: make([]cell, cols)} }

func (g *grid) row(y int) *row {
	i := g.base + y
	if i >= len(g.rows) {
		i -= len(g.rows)
	}
	return g.rows[i]
}

// straighten makes rows[y] row y.
func (g *grid) straighten() {
	if g.base != 0 {
		rotateLeft(g.rows, g.base)
		g.base = 0
	}
}

// rotateLeft makes rows[n] the first.
func rotateLeft(rows []*row, n int) {
	slices.Reverse(rows[:n])
	slices.Reverse(rows[n:])
	slices.Reverse(rows)
}

// Bounds on text that shares a cell with a character: combining marks, joiners, variation selectors.
const (
	maxCluster      = 256
	maxClusters     = 32 << 10
	maxClusterBytes = 1 << 20
)

// clusters numbers the texts that do not fit into a cell.
type clusters struct {
	list  []string
	index map[string]cell
	bytes int
	deny  int // that many are refused before cells are searched for unused ones again
}

// add gives the number of s as a cell, and 0 when there is no room.
func (cs *clusters) add(s []byte) cell {
	if c, ok := cs.index[string(s)]; ok {
		return c
	}
	if len(cs.list) >= maxClusters || cs.bytes+len(s) > maxClusterBytes {
		return 0
	}
	if cs.index == nil {
		cs.index = make(map[string]cell)
	}
	c, key := grouped|cell(len(cs.list)), string(s)
	cs.list = append(cs.list, key)
	cs.index[key] = c
	cs.bytes += len(key)
	return c
}

// join gives the cell for what c holds followed by r, and false when it would be too long or there is no room.
func (t *Terminal) join(c cell, r rune) (cell, bool) {
	var buf [maxCluster + utf8.UTFMax]byte
	s := utf8.AppendRune(t.appendCell(buf[:0], c), r)
	if len(s) > maxCluster {
		return 0, false
	}
	v := t.text.add(s)
	if v == 0 {
		if t.text.deny > 0 {
			t.text.deny--
			return 0, false
		}
		t.compact()
		v = t.text.add(s)
	}
	return v, v != 0
}

// compact renumbers the clusters that cells still show. If that frees little, it is not tried again soon: the
// search costs time in the order of the screen's size.
func (t *Terminal) compact() {
	before := t.text.list
	t.text = clusters{}
	for _, g := range []*grid{&t.main, &t.alternate} {
		for _, r := range g.rows {
			for i, c := range r.cells[:r.used] {
				if c&grouped != 0 {
					r.cells[i] = t.text.add([]byte(before[c&valueMask])) | c&^(valueMask|grouped)
				}
			}
		}
	}
	if len(t.text.list) > maxClusters/2 || t.text.bytes > maxClusterBytes/2 {
		t.text.deny = maxClusters
	}
}

// appendCell appends what a cell holds, nothing for an empty one.
func (t *Terminal) appendCell(dst []byte, c cell) []byte {
	switch v := c & valueMask; {
	case c&grouped != 0:
		return append(dst, t.text.list[v]...)
	case v != 0:
		return utf8.AppendRune(dst, rune(v))
	}
	return dst
}

// appendText appends the row's text from a column on, as printed since the last Mark. Cells inside it that hold
// nothing are spaces.
func (t *Terminal) appendText(dst []byte, r *row, from int) []byte {
	end := r.used
	for end > from && (r.cells[end-1] == 0 || r.cells[end-1]&old != 0) {
		end--
	}
	if from >= end {
		return dst
	}
	for _, c := range r.cells[from:end] {
		switch {
		case c-' ' < utf8.RuneSelf-' ':
			dst = append(dst, byte(c))
		case c == 0 || c&old != 0:
			dst = append(dst, ' ')
		case c&spill == 0:
			dst = t.appendCell(dst, c)
		}
	}
	return dst
}

// appendScreen appends what the row shows, without trailing blanks.
func (t *Terminal) appendScreen(dst []byte, r *row) []byte {
	start := len(dst)
	for x := 0; x < r.used; {
		end := x + 1
		for end < r.used && r.cells[end]&spill != 0 {
			end++
		}
		width := 0
		if c := r.cells[x]; c&spill == 0 {
			at := len(dst)
			dst = t.appendCell(dst, c)
			if c&grouped != 0 || c&valueMask == '\t' {
				shown := strings.ReplaceAll(string(dst[at:]), "\t", "")
				dst = append(dst[:at], shown...)
			}
			for _, s := range string(dst[at:]) {
				width += runeWidth(s)
			}
		}
		for ; width < end-x; width++ {
			dst = append(dst, ' ')
		}
		x = end
	}
	end := len(dst)
	for end > start && dst[end-1] == ' ' {
		end--
	}
	return dst[:end]
}
