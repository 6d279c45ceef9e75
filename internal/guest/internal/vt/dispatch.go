package vt

import "strconv"

// dispatchEscape handles ESC and one byte.
func (t *Terminal) dispatchEscape(b byte) {
	switch b {
	case '7':
		t.saveCursor()
	case '8':
		t.restoreCursor()
	case 'D':
		t.wrap = false
		t.index()
	case 'E':
		t.nextRow()
	case 'H':
		t.tabs[t.x] = true
	case 'M':
		t.wrap = false
		t.reverseIndex()
	case 'N':
		t.single = 2
	case 'O':
		t.single = 3
	case 'n':
		t.set = 2
	case 'o':
		t.set = 3
	case 'Z':
		t.replyAttributes()
	case 'c':
		t.reset()
	}
}

// dispatchDesignate handles ESC, an intermediate and one byte: character sets, and the screen
// alignment test.
func (t *Terminal) dispatchDesignate(b byte) {
	switch t.inter {
	case '(', ')', '*', '+':
		if b != '0' && b != 'A' {
			b = 'B'
		}
		t.sets[t.inter-'('] = b
	case '#':
		if b == '8' {
			t.fillWithE()
		}
	}
}

// dispatchControl handles a control sequence with its final byte.
func (t *Terminal) dispatchControl(b byte) {
	t.nparams = min(t.nparams, len(t.params))
	switch {
	case t.inter != 0:
		t.dispatchIntermediate(b)
	case t.prefix == '?':
		t.dispatchPrivate(b)
	case t.prefix == '>':
		if b == 'c' {
			t.reply("\x1b[>0;10;1c")
		}
	case t.prefix == 0:
		if !t.moveCursor(b) {
			t.editScreen(b)
		}
	}
}

// param returns parameter i, or def if it is missing or 0.
func (t *Terminal) param(i, def int) int {
	if i >= t.nparams || t.params[i] == 0 {
		return def
	}
	return t.params[i]
}

// moveCursor handles sequences that only move the cursor.
func (t *Terminal) moveCursor(b byte) bool {
	n := t.param(0, 1)
	switch b {
	case 'A':
		t.up(n)
	case 'B', 'e':
		t.down(n)
	case 'C', 'a':
		t.goTo(t.x+n, t.y)
	case 'D':
		t.goTo(t.x-n, t.y)
	case 'E':
		t.down(n)
		t.x = 0
	case 'F':
		t.up(n)
		t.x = 0
	case 'G', '`':
		t.goTo(n-1, t.y)
	case 'H', 'f':
		t.goToOrigin(t.param(1, 1)-1, n-1)
	case 'd':
		t.goToOrigin(t.x, n-1)
	case 'I':
		for range min(n, t.cols) {
			t.goTo(t.nextTab(t.x), t.y)
		}
	case 'Z':
		for range min(n, t.cols) {
			t.goTo(t.previousTab(t.x), t.y)
		}
	case 's':
		t.saveCursor()
	case 'u':
		t.restoreCursor()
	default:
		return false
	}
	return true
}

func (t *Terminal) goTo(x, y int) {
	t.x, t.y, t.wrap = clamp(x, 0, t.cols-1), clamp(y, 0, t.rows-1), false
}

// goToOrigin moves to a position, which is relative to the scrolling region in origin mode.
func (t *Terminal) goToOrigin(x, y int) {
	if t.origin {
		t.goTo(x, clamp(y+t.top, t.top, t.bottom))
	} else {
		t.goTo(x, y)
	}
}

// up and down stop at the edge of the scrolling region unless they start outside of it.
func (t *Terminal) up(n int) {
	stop := 0
	if t.y >= t.top {
		stop = t.top
	}
	t.goTo(t.x, max(t.y-n, stop))
}

func (t *Terminal) down(n int) {
	stop := t.rows - 1
	if t.y <= t.bottom {
		stop = t.bottom
	}
	t.goTo(t.x, min(t.y+n, stop))
}

// editScreen handles the other sequences without a prefix.
func (t *Terminal) editScreen(b byte) {
	n := t.param(0, 1)
	switch b {
	case '@':
		t.insertCells(n)
	case 'J':
		t.eraseDisplay(t.param(0, 0))
	case 'K':
		t.eraseLine(t.param(0, 0))
	case 'L':
		if t.y >= t.top && t.y <= t.bottom {
			t.scrollDown(t.y, n)
			t.goTo(0, t.y)
		}
	case 'M':
		if t.y >= t.top && t.y <= t.bottom {
			t.scrollUp(t.y, n, false)
			t.goTo(0, t.y)
		}
	case 'P':
		t.deleteCells(n)
	case 'S':
		t.scrollUp(t.top, n, true)
	case 'T':
		if t.nparams <= 1 { // with more it is mouse tracking
			t.scrollDown(t.top, n)
		}
	case 'X':
		t.wrap = false
		t.erase(t.y, t.x, min(t.x+n, t.cols))
	case 'b':
		if t.last != 0 {
			// Limited to one row, so that a few bytes cannot cause much work.
			for range min(n, t.cols) {
				t.print(t.last)
			}
		}
	case 'c':
		if t.param(0, 0) == 0 {
			t.replyAttributes()
		}
	case 'g':
		t.clearTabs()
	case 'h', 'l':
		t.setModes(b == 'h')
	case 'n':
		t.replyStatus("\x1b[")
	case 'r':
		t.setRegion()
	case 't':
		if n == 18 {
			t.reply("\x1b[8;" + strconv.Itoa(t.rows) + ";" + strconv.Itoa(t.cols) + "t")
		}
	}
}

func (t *Terminal) clearTabs() {
	switch t.param(0, 0) {
	case 0:
		t.tabs[t.x] = false
	case 3:
		clear(t.tabs)
	}
}

func (t *Terminal) setRegion() {
	top, bottom := t.param(0, 1)-1, min(t.param(1, t.rows), t.rows)-1
	if top < bottom {
		t.top, t.bottom = top, bottom
		t.goToOrigin(0, 0)
	}
}

func (t *Terminal) setModes(on bool) {
	for _, p := range t.params[:t.nparams] {
		switch p {
		case 4:
			t.modes.insert = on
		case 20:
			t.modes.newline = on
		}
	}
}

// dispatchPrivate handles ESC [ ? sequences.
func (t *Terminal) dispatchPrivate(b byte) {
	switch b {
	case 'h', 'l':
		for _, p := range t.params[:t.nparams] {
			t.setPrivateMode(p, b == 'h')
		}
	case 'J':
		t.eraseDisplay(t.param(0, 0))
	case 'K':
		t.eraseLine(t.param(0, 0))
	case 'n':
		t.replyStatus("\x1b[?")
	}
}

func (t *Terminal) setPrivateMode(mode int, on bool) {
	switch mode {
	case 1:
		t.modes.appCursor = on
	case 6:
		t.origin = on
		t.goToOrigin(0, 0)
	case 7:
		t.modes.noWrap = !on
		t.wrap = t.wrap && on
	case 25:
		t.modes.hidden = !on
	case 47, 1047:
		if on {
			t.enterAlternate()
		} else {
			t.leaveAlternate(false)
		}
	case 1048:
		if on {
			t.saveCursor()
		} else {
			t.restoreCursor()
		}
	case 1049:
		switch {
		case on && !t.Alt():
			t.saveCursor()
			t.enterAlternate()
		case on:
			t.eraseRows(0, t.rows)
		default:
			t.leaveAlternate(false)
			t.restoreCursor()
		}
	case 2004:
		t.modes.paste = on
	}
}

// dispatchIntermediate handles control sequences with an intermediate byte.
func (t *Terminal) dispatchIntermediate(b byte) {
	switch {
	case t.inter == '!' && b == 'p':
		t.softReset()
	case t.inter == '$' && b == 'p' && t.prefix == '?':
		t.reply("\x1b[?" + strconv.Itoa(t.param(0, 0)) + ";0$y")
	}
}

func (t *Terminal) savedSlot() *cursor {
	if t.Alt() {
		return &t.saved[1]
	}
	return &t.saved[0]
}

func (t *Terminal) saveCursor() { *t.savedSlot() = t.cursor }

func (t *Terminal) restoreCursor() { t.cursor = *t.savedSlot() }

// fillWithE handles the screen alignment test.
func (t *Terminal) fillWithE() {
	t.top, t.bottom = 0, t.rows-1
	t.goTo(0, 0)
	for y := range t.rows {
		r := t.grid.row(y)
		for x := range r.cells {
			r.cells[x] = 'E'
		}
		r.used, r.cont, r.fresh = t.cols, false, true
	}
}

func (t *Terminal) reply(s string) {
	if t.opts.Reply != nil {
		t.opts.Reply([]byte(s))
	}
}

func (t *Terminal) replyAttributes() { t.reply("\x1b[?62;22c") }

// replyStatus sends the terminal status or the position of the cursor.
func (t *Terminal) replyStatus(intro string) {
	switch t.param(0, 0) {
	case 5:
		t.reply(intro + "0n")
	case 6:
		y := t.y
		if t.origin {
			y -= t.top
		}
		t.reply(intro + strconv.Itoa(y+1) + ";" + strconv.Itoa(t.x+1) + "R")
	}
}
