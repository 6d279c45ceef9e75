package vt

// erase clears the cells [from, to) of row y.
func (t *Terminal) erase(y, from, to int) {
	r := t.grid.row(y)
	if from == 0 {
		r.cont = false
	}
	if to == t.cols && y+1 < t.rows {
		t.grid.row(y + 1).cont = false
	}
	if from >= r.used || from >= to {
		return
	}
	r.split(from, to)
	clear(r.cells[from:min(to, r.used)])
	if to >= r.used {
		r.used = from
	}
	if r.used == 0 {
		r.fresh = false
	}
}

// eraseRows clears rows [from, to).
func (t *Terminal) eraseRows(from, to int) {
	for y := from; y < to; y++ {
		t.grid.row(y).clear()
	}
	if to < t.rows && from < to {
		t.grid.row(to).cont = false
	}
}

// eraseStart returns the column where erasing to the right starts. If the cursor waits after
// the last column, that is the right edge, so that programs that erase after each colored
// word do not lose the last character.
func (t *Terminal) eraseStart() int {
	if t.wrap {
		return t.cols
	}
	return t.x
}

func (t *Terminal) eraseLine(how int) {
	switch how {
	case 0:
		t.erase(t.y, t.eraseStart(), t.cols)
	case 1:
		t.erase(t.y, 0, t.x+1)
	case 2:
		t.erase(t.y, 0, t.cols)
	}
}

func (t *Terminal) eraseDisplay(how int) {
	switch how {
	case 0:
		t.erase(t.y, t.eraseStart(), t.cols)
		t.eraseRows(t.y+1, t.rows)
	case 1:
		t.eraseRows(0, t.y)
		t.erase(t.y, 0, t.x+1)
	case 2:
		t.eraseRows(0, t.rows)
	case 3:
		if !t.Alt() {
			t.record.reset()
		}
	}
}

// insertCells inserts n cells at the cursor. Cells that pass the right edge are lost.
func (t *Terminal) insertCells(n int) {
	r := t.grid.row(t.y)
	t.wrap = false
	if t.x >= r.used {
		return
	}
	n = min(n, t.cols-t.x)
	r.split(t.x, t.x)
	r.split(t.cols-n, t.cols)
	end := min(r.used+n, t.cols)
	copy(r.cells[t.x+n:end], r.cells[t.x:])
	clear(r.cells[t.x : t.x+n])
	r.used = end
}

// deleteCells removes n cells at the cursor and moves the rest of the row left.
func (t *Terminal) deleteCells(n int) {
	r := t.grid.row(t.y)
	t.wrap = false
	n = min(n, t.cols-t.x)
	if t.y+1 < t.rows {
		t.grid.row(t.y + 1).cont = false
	}
	if t.x >= r.used {
		return
	}
	r.split(t.x, min(t.x+n, t.cols))
	kept := copy(r.cells[t.x:r.used], r.cells[min(t.x+n, r.used):r.used])
	clear(r.cells[t.x+kept : r.used])
	r.used = t.x + kept
}

// index moves the cursor down a row, and scrolls at the bottom of the region.
func (t *Terminal) index() {
	switch t.y {
	case t.bottom:
		t.scrollUp(t.top, 1, true)
	case t.rows - 1:
	default:
		t.y++
	}
}

// reverseIndex moves the cursor up a row, and scrolls at the top of the region.
func (t *Terminal) reverseIndex() {
	switch t.y {
	case t.top:
		t.scrollDown(t.top, 1)
	case 0:
	default:
		t.y--
	}
}

// scrollUp moves the rows from top to the bottom of the region up by n. With save, rows that
// leave the top of the main screen are added to the record; otherwise they are lost.
func (t *Terminal) scrollUp(top, n int, save bool) {
	n = min(n, t.bottom-top+1)
	save = save && top == 0 && !t.Alt()
	if save {
		for y := range n {
			t.commit(t.main.row(y), y)
		}
	}
	if !t.Alt() && t.markY >= top && t.markY <= t.bottom {
		if t.markY -= n; t.markY < top {
			t.markX = 0
			if !save {
				t.markY = top
			}
		}
	}
	if top == 0 && t.bottom == t.rows-1 {
		for range n {
			t.grid.row(0).clear()
			if t.grid.base++; t.grid.base == t.rows {
				t.grid.base = 0
			}
		}
	} else {
		t.rotate(top, n)
		t.eraseRows(t.bottom+1-n, t.bottom+1)
	}
	if !save {
		t.grid.row(top).cont = false
	}
}

// scrollDown moves the rows from top to the bottom of the region down by n. Rows that leave
// the bottom are lost.
func (t *Terminal) scrollDown(top, n int) {
	height := t.bottom - top + 1
	n = min(n, height)
	if !t.Alt() && t.markY >= top && t.markY <= t.bottom {
		t.markY = min(t.markY+n, t.bottom+1)
	}
	t.rotate(top, height-n)
	t.eraseRows(top, top+n)
	if t.bottom+1 < t.rows {
		t.grid.row(t.bottom + 1).cont = false
	}
}

// rotate rotates the rows from top to the bottom of the region up by n.
func (t *Terminal) rotate(top, n int) {
	t.grid.straighten()
	rotateLeft(t.grid.rows[top:t.bottom+1], n)
}

// commit adds row y of the main screen to the record.
func (t *Terminal) commit(r *row, y int) {
	if y < t.markY && !t.record.begun && !r.written() {
		return
	}
	t.line = t.line[:0]
	if t.record.begun && !r.cont {
		t.line = append(t.line, '\n')
	}
	t.record.begun = true
	t.line = t.appendText(t.line, r, t.markColumn(r, y))
	t.record.write(t.line)
}

// enterAlternate shows an empty alternate screen. It is a no-op if it is shown already.
func (t *Terminal) enterAlternate() {
	if t.Alt() {
		return
	}
	t.parked = t.cursor
	t.alternate.clear(t.cols, t.rows)
	t.grid = &t.alternate
}

// leaveAlternate shows the main screen, and restores its cursor if restore is set.
func (t *Terminal) leaveAlternate(restore bool) {
	if !t.Alt() {
		return
	}
	t.grid = &t.main
	if restore {
		t.cursor = t.parked
	}
}
