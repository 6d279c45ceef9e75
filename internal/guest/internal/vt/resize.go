package vt

import "slices"

// Resize changes the size. On the main screen lines wrap at the new width, and rows that do
// not fit scroll off the top. The alternate screen is cropped, because its program redraws it.
func (t *Terminal) Resize(cols, rows int) {
	cols, rows = clamp(cols, 1, MaxCols), clamp(rows, 1, MaxRows)
	if cols == t.cols && rows == t.rows {
		return
	}
	at := t.mainCursor()
	t.main.straighten()
	if cols != t.cols {
		t.reflow(at, cols)
	}
	t.cols, t.rows = cols, rows
	t.fit(at)
	if t.alternate.rows != nil {
		t.alternate.crop(cols, rows)
	}
	if t.Alt() {
		t.cursor.confine(cols, rows)
	}
	t.saved[0].y = min(t.saved[0].y, rows-1)
	t.saved[1].confine(cols, rows)
	t.tabs = tabStops(t.tabs[:min(len(t.tabs), cols)], cols)
	t.top, t.bottom = 0, rows-1
}

// confine keeps the cursor on the screen.
func (c *cursor) confine(cols, rows int) {
	c.x, c.y, c.wrap = min(c.x, cols-1), min(c.y, rows-1), false
}

// fit adjusts the number of rows of the main screen. It removes empty rows below the cursor
// first, then rows at the top.
func (t *Terminal) fit(at *cursor) {
	g := t.main.rows
	for len(g) > t.rows && len(g)-1 > at.y && g[len(g)-1].used == 0 {
		g = g[:len(g)-1]
	}
	for len(g) > t.rows && at.y > 0 {
		t.commit(g[0], 0)
		g = g[1:]
		at.y--
		t.saved[0].y = max(t.saved[0].y-1, 0)
		if t.markY >= 0 {
			t.markY--
		}
	}
	t.main.rows = slices.Clone(g[:min(len(g), t.rows)])
	t.main.grow(t.cols, t.rows)
	t.markY = min(t.markY, t.rows)
}

// crop crops or extends the grid at the right and at the bottom.
func (g *grid) crop(cols, rows int) {
	g.straighten()
	cropped := make([]*row, 0, rows)
	for _, r := range g.rows[:min(rows, len(g.rows))] {
		if r.used > cols {
			r.split(cols, cols)
			r.used = cols
		}
		n := newRow(cols)
		copy(n.cells, r.cells[:r.used])
		n.used, n.cont, n.fresh = r.used, r.cont, r.fresh
		cropped = append(cropped, n)
	}
	g.rows = cropped
	g.grow(cols, rows)
}

// reflow wraps the lines of the main screen at another width. The cursor, the saved cursor and
// the mark keep their position relative to the text.
func (t *Terminal) reflow(at *cursor, cols int) {
	f := flow{cols: cols}
	mark := spot{x: t.markX, y: t.markY}
	here, saved := at.spot(), t.saved[0].spot()
	f.spots = []*spot{&here, &saved, &mark}
	for y, r := range t.main.rows {
		if y == 0 || !r.cont {
			f.next(r.cont)
		}
		last := y+1 == len(t.main.rows) || !t.main.rows[y+1].cont
		f.row(r, y, last)
	}
	t.main.rows = f.out
	at.place(here, cols)
	t.saved[0].place(saved, cols)
	if mark.found {
		t.markX, t.markY = mark.toX, mark.toY
	} else if t.markY >= 0 {
		t.markX, t.markY = 0, len(f.out)
	}
}

// spot is a position that follows its character through a reflow.
type spot struct {
	x, y     int
	toX, toY int
	found    bool
}

func (c *cursor) spot() spot {
	if c.wrap {
		return spot{x: c.x + 1, y: c.y}
	}
	return spot{x: c.x, y: c.y}
}

// place moves the cursor to the spot. After the last column it waits for the next character
// to wrap.
func (c *cursor) place(s spot, cols int) {
	c.x, c.y, c.wrap = min(s.toX, cols-1), s.toY, s.toX == cols
}

// flow builds rows of another width.
type flow struct {
	cols  int
	spots []*spot
	out   []*row
	x     int // column of the next cell in the last row
}

func (f *flow) next(cont bool) {
	n := newRow(f.cols)
	n.cont = cont
	f.out = append(f.out, n)
	f.x = 0
}

// row appends the cells of old row y and records the new positions of its spots. last says
// that it is the last row of its line.
func (f *flow) row(r *row, y int, last bool) {
	end := r.used
	for end > 0 && r.cells[end-1] == 0 {
		end--
	}
	for x := 0; x < end; {
		next := x + 1
		for next < end && r.cells[next]&spill != 0 {
			next++
		}
		width := next - x
		if f.x == f.cols || f.x+width > f.cols && f.x > 0 && r.cells[x]&^old != '\t' {
			f.next(true)
		}
		for _, s := range f.spots {
			if s.y == y && s.x >= x && s.x < next {
				s.toX, s.toY, s.found = min(f.x+s.x-x, f.cols-1), len(f.out)-1, true
			}
		}
		n := f.out[len(f.out)-1]
		f.x += copy(n.cells[f.x:], r.cells[x:next])
		n.used, n.fresh = f.x, n.fresh || r.fresh
		x = next
	}
	for _, s := range f.spots {
		if s.y != y || s.x < end {
			continue
		}
		s.toX, s.toY, s.found = f.x, len(f.out)-1, true
		if s.x > end && last {
			s.toX = min(f.x+s.x-end, f.cols-1)
		}
	}
}
