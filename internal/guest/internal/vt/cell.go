package vt

import (
	"slices"
	"strings"
	"unicode/utf8"
)

// cell is one cell of the screen: 0 if it is empty, otherwise a character with flags. Flags
// make the value larger than any character, so that a comparison detects the common case.
type cell uint32

const (
	valueMask cell = 1<<21 - 1
	grouped   cell = 1 << 21 // the value is the number of a cluster, not a character
	spill     cell = 1 << 22 // continues the character to its left: a wide character or a tab
	carry     cell = 1 << 23 // only text without width; the next character printed here joins it
	old       cell = 1 << 24 // printed before the last Mark
)

// row is one row of the screen.
type row struct {
	cells []cell // one per column
	used  int    // cells from here are 0
	cont  bool   // the row continues the one above: a line that reached the right edge
	fresh bool   // may have cells printed since the last Mark
}

func (r *row) clear() {
	clear(r.cells[:r.used])
	r.used, r.cont, r.fresh = 0, false, false
}

// age marks all cells of the row as printed before the Mark.
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

// written reports whether the row has text printed since the last Mark.
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

// split prepares cells [from, to) for replacement: it clears a wide character or tab that
// crosses an edge.
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

// grid has the rows of a screen as a ring, so that scrolling the complete screen moves no
// row.
type grid struct {
	rows []*row
	base int
}

// clear clears the grid, and creates its rows if it has none.
func (g *grid) clear(cols, rows int) {
	for _, r := range g.rows {
		r.clear()
	}
	g.grow(cols, rows)
}

// grow adds empty rows up to a number of rows.
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

// straighten rotates the slice so that rows[y] is row y.
func (g *grid) straighten() {
	if g.base != 0 {
		rotateLeft(g.rows, g.base)
		g.base = 0
	}
}

// rotateLeft makes rows[n] the first row.
func rotateLeft(rows []*row, n int) {
	slices.Reverse(rows[:n])
	slices.Reverse(rows[n:])
	slices.Reverse(rows)
}

// Limits of text that shares a cell with a character: combining marks, joiners, variation
// selectors.
const (
	maxCluster      = 256
	maxClusters     = 32 << 10
	maxClusterBytes = 1 << 20
)

// clusters assigns numbers to texts that do not fit into a cell.
type clusters struct {
	list  []string
	index map[string]cell
	bytes int
	deny  int // number of texts to refuse before unused ones are searched again
}

// add returns the number of s as a cell, or 0 if the limit is reached.
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

// join returns the cell for the content of c followed by r. It returns false if that is too
// long or the limit is reached.
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

// compact removes clusters that no cell uses. If that frees little, it is not repeated soon,
// because the search is proportional to the size of the screen.
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

// appendCell appends the content of a cell.
func (t *Terminal) appendCell(dst []byte, c cell) []byte {
	switch v := c & valueMask; {
	case c&grouped != 0:
		return append(dst, t.text.list[v]...)
	case v != 0:
		return utf8.AppendRune(dst, rune(v))
	}
	return dst
}

// appendText appends the row's text printed since the last Mark, starting at a column. Empty
// cells inside it become spaces.
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

// appendScreen appends the shown text of the row, without trailing blanks.
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
