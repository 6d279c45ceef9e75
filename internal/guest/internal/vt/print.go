package vt

// printASCII prints the printable ASCII characters at the start of p and returns their number.
// It is optimized for appending to a row.
func (t *Terminal) printASCII(p []byte) int {
	n := 0
	for n < len(p) && p[n]-' ' < 0x7f-' ' {
		if t.modes.insert || t.modes.noWrap || t.single >= 0 || t.sets[t.set] != 'B' {
			t.print(t.translate(p[n]))
			n++
			continue
		}
		wrapped := t.wrap
		if wrapped {
			t.nextRow()
		}
		r := t.grid.row(t.y)
		if t.x < r.used {
			t.place(rune(p[n]), 1, wrapped)
			n++
			continue
		}
		src := p[n:min(len(p), n+t.cols-t.x)]
		dst := r.cells[t.x:]
		k := 0
		for ; k < len(src) && src[k]-' ' < 0x7f-' '; k++ {
			dst[k] = cell(src[k])
		}
		if t.x == 0 {
			r.cont = wrapped
		}
		n += k
		t.last = rune(src[k-1])
		r.used = t.x + k
		r.fresh = true
		t.advance(k)
	}
	return n
}

// print prints one character at the cursor.
func (t *Terminal) print(c rune) {
	w := runeWidth(c)
	if w == 0 {
		t.combine(c)
		return
	}
	w = min(w, t.cols)
	wrapped := t.wrap && !t.modes.noWrap
	if wrapped {
		t.nextRow()
	}
	if t.x+w > t.cols {
		if t.modes.noWrap {
			t.x = t.cols - w
		} else {
			if t.grid.row(t.y).cells[t.x]&carry == 0 {
				t.erase(t.y, t.x, t.cols)
			}
			t.nextRow()
			wrapped = true
		}
	}
	if t.modes.insert {
		t.insertCells(w)
	}
	t.place(c, w, wrapped)
}

// place writes a character that fits at the cursor. wrapped says that it continues the row
// above.
func (t *Terminal) place(c rune, w int, wrapped bool) {
	r := t.grid.row(t.y)
	v, was := cell(c), r.cells[t.x]
	if was&(carry|old) == carry {
		if joined, ok := t.join(was, c); ok {
			v = joined
		}
	} else if c == ' ' && was != 0 && was&old == 0 {
		v = 0
	}
	r.split(t.x, t.x+w)
	r.cells[t.x] = v
	for i := 1; i < w; i++ {
		r.cells[t.x+i] = spill
	}
	if t.x == 0 {
		r.cont = wrapped
	}
	r.used = max(r.used, t.x+w)
	r.fresh = true
	t.last = c
	t.advance(w)
}

// advance moves the cursor past a printed character. In the last column it stays until the
// next character, so that a line with the width of the screen causes no empty row.
func (t *Terminal) advance(w int) {
	t.x += w
	if t.x >= t.cols {
		t.x = t.cols - 1
		t.wrap = !t.modes.noWrap
	}
}

// nextRow moves the cursor to the start of the next row.
func (t *Terminal) nextRow() {
	t.x, t.wrap = 0, false
	t.index()
}

// combine appends a character without width to the previous character. If there is none, it
// is kept for the next character.
func (t *Terminal) combine(c rune) {
	r := t.grid.row(t.y)
	if t.attach(r, t.x, c, carry) {
		return
	}
	x := t.x
	if !t.wrap {
		x--
	}
	if x >= 0 && t.attach(r, x, c, 0) {
		return
	}
	if v, ok := t.join(0, c); ok {
		t.hold(r, v)
	}
}

// attach appends a character without width to the character in column x, if that has the
// wanted flag.
func (t *Terminal) attach(r *row, x int, c rune, want cell) bool {
	for x > 0 && r.cells[x]&spill != 0 {
		x--
	}
	if was := r.cells[x]; was == 0 || was&old != 0 || was&want != want {
		return false
	}
	// If it does not fit, it is dropped, but counts as attached.
	if v, ok := t.join(r.cells[x], c); ok {
		r.cells[x] = v | r.cells[x]&carry
	}
	return true
}

// hold keeps text without width at the cursor for the next character.
func (t *Terminal) hold(r *row, v cell) {
	r.split(t.x, t.x+1)
	r.cells[t.x] = v | carry
	r.used = max(r.used, t.x+1)
	r.fresh = true
}

// tab moves the cursor to the next tab stop. If it passes only empty cells, the tab is
// recorded. At the right edge, where the cursor cannot move, the tab is attached to the
// characters around it.
func (t *Terminal) tab() {
	r := t.grid.row(t.y)
	if t.wrap {
		t.attach(r, t.x, '\t', 0)
		return
	}
	next := t.nextTab(t.x)
	first := r.cells[t.x]
	if next == t.x {
		if first == 0 || first&(carry|old) == carry {
			if v, ok := t.join(first, '\t'); ok {
				t.hold(r, v)
			}
		}
		return
	}
	blank := first == 0
	if first&(carry|old) == carry {
		if v, ok := t.join(first, '\t'); ok {
			blank, first = true, v
		}
	} else {
		first = '\t'
	}
	for _, c := range r.cells[t.x+1 : next] {
		blank = blank && c == 0
	}
	if blank {
		if t.x == 0 {
			r.cont = false
		}
		r.cells[t.x] = first
		for i := t.x + 1; i < next; i++ {
			r.cells[i] = spill
		}
		r.used = max(r.used, next)
		r.fresh = true
	}
	t.x = next
}

func (t *Terminal) nextTab(x int) int {
	for x++; x < t.cols; x++ {
		if t.tabs[x] {
			return x
		}
	}
	return t.cols - 1
}

func (t *Terminal) previousTab(x int) int {
	for x--; x > 0; x-- {
		if t.tabs[x] {
			return x
		}
	}
	return 0
}

// tabStops extends stops to a number of columns, with a stop in every eighth column.
func tabStops(stops []bool, cols int) []bool {
	for x := len(stops); x < cols; x++ {
		stops = append(stops, x%8 == 0)
	}
	return stops[:cols]
}

// lineDrawing is the DEC special graphics set, starting with '_'.
var lineDrawing = [...]rune{
	' ', '◆', '▒', '␉', '␌', '␍', '␊', '°', '±', '␤', '␋', '┘', '┐', '┌', '└', '┼',
	'⎺', '⎻', '─', '⎼', '⎽', '├', '┤', '┴', '┬', '│', '≤', '≥', 'π', '≠', '£', '·',
}

// translate applies the current character set.
func (t *Terminal) translate(b byte) rune {
	set := t.sets[t.set]
	if t.single >= 0 {
		set = t.sets[t.single]
		t.single = -1
	}
	switch {
	case set == '0' && b >= '_' && b <= '~':
		return lineDrawing[b-'_']
	case set == 'A' && b == '#':
		return '£'
	}
	return rune(b)
}
