// Package vt emulates a terminal: it interprets the output of programs and provides the output
// as plain text, and the current screen.
//
// It owns the screen (main and alternate), the record of text since the last Mark, and the
// state of the parser. Their size is limited. It keeps no colors, accesses no files, and is
// not safe for concurrent use.
//
// For output without cursor movements the text is exactly the output, independent of the
// width of the screen: long lines are not broken, and tabs and trailing spaces are kept. Text
// that was overwritten or erased is not included. A space printed over a character erases it,
// so that a shorter line after a progress bar has no padding. Lines that scrolled off the top
// are final.
package vt

import "fmt"

// Maximum sizes; New and Resize clamp to them.
const (
	MaxCols = 1000
	MaxRows = 500
)

// DefaultLimit is the default number of bytes of text in a record.
const DefaultLimit = 1 << 20

// Options configures a Terminal. Write calls the functions after it has interpreted the
// stream up to their cause. They may call all methods of the Terminal except Write, and must
// not block.
type Options struct {
	// Limit is how many bytes of scrolled-off text a record keeps, half from its start and
	// half from its end; 0: DefaultLimit.
	Limit int
	// OSC receives the body of every operating system command: the bytes between ESC ] and
	// its terminator. Canceled bodies and bodies above 8 KiB are skipped. The slice is only
	// valid during the call.
	OSC func(body []byte)
	// Reply receives the reply to a query (cursor position, device attributes, size), which
	// the owner must type. The slice is only valid during the call. Nil: no replies.
	Reply func(reply []byte)
}

// Terminal is an interpreter with its screen. Use New.
type Terminal struct {
	opts       Options
	cols, rows int

	main, alternate grid
	grid            *grid // the shown one of the two
	parked          cursor
	saved           [2]cursor // by ESC 7, for the main and the alternate screen
	cursor
	top, bottom int // the scrolling region, inclusive
	tabs        []bool
	modes       modes
	title       string

	text clusters
	parser

	record       record // rows that scrolled off since the mark
	markX, markY int    // the mark on the main screen; negative after its row has scrolled off
	line         []byte // buffer for the text of a row
}

// cursor is the state that ESC 7 saves.
type cursor struct {
	x, y   int
	wrap   bool // the last column has a character, and the next one starts a new row
	origin bool // positions are relative to the scrolling region
	sets   [4]byte
	set    int // index of the current set
	single int // index of the set for the next character only; -1: none
}

type modes struct {
	insert, newline, noWrap bool
	hidden                  bool
	appCursor, paste        bool
}

// New returns a terminal with an empty screen and an empty record.
func New(cols, rows int, opts Options) *Terminal {
	if opts.Limit <= 0 {
		opts.Limit = DefaultLimit
	}
	t := &Terminal{opts: opts, cols: clamp(cols, 1, MaxCols), rows: clamp(rows, 1, MaxRows)}
	t.record.limit = opts.Limit
	t.Reset()
	return t
}

// Reset restores the state after New, but keeps the size.
func (t *Terminal) Reset() {
	t.parser = parser{body: t.body[:0]}
	t.title = ""
	t.reset()
}

// reset handles the reset sequence. It keeps the title and the state of the parser, which is
// processing the sequence.
func (t *Terminal) reset() {
	t.main.clear(t.cols, t.rows)
	t.grid = &t.main
	t.modes = modes{}
	t.cursor = cursor{single: -1, sets: [4]byte{'B', 'B', 'B', 'B'}}
	t.saved = [2]cursor{t.cursor, t.cursor}
	t.top, t.bottom = 0, t.rows-1
	t.tabs = tabStops(t.tabs[:0], t.cols)
	t.text = clusters{}
	t.record.reset()
	t.markX, t.markY = 0, 0
}

// SoftReset restores the default modes after a program that ended without cleanup: main
// screen, scrolling of the complete screen, ASCII, visible cursor. It keeps the content of
// the screen and the record.
func (t *Terminal) SoftReset() {
	t.leaveAlternate(true)
	t.softReset()
}

// softReset handles the soft reset sequence. It keeps the shown screen.
func (t *Terminal) softReset() {
	t.modes = modes{}
	t.sets = [4]byte{'B', 'B', 'B', 'B'}
	t.set, t.single, t.origin = 0, -1, false
	t.saved = [2]cursor{t.cursor, t.cursor}
	t.top, t.bottom = 0, t.rows-1
}

// Mark starts a new record at the cursor.
func (t *Terminal) Mark() {
	t.record.reset()
	for y := range t.rows {
		t.main.row(y).age()
	}
	c := t.mainCursor()
	t.markX, t.markY = c.x, c.y
	if c.wrap {
		t.markX = t.cols
	}
}

// Text is the content of a record.
type Text struct {
	Head    string // the complete text, or its start if characters were dropped
	Dropped int64  // number of characters missing between Head and Tail
	Tail    string // the end, if characters were dropped
}

// String joins the parts, with a note in place of dropped characters.
func (x Text) String() string {
	if x.Dropped == 0 {
		return x.Head
	}
	nl := ""
	if x.Head != "" && x.Head[len(x.Head)-1] != '\n' {
		nl = "\n"
	}
	return fmt.Sprintf("%s%s[... %d characters dropped ...]\n%s", x.Head, nl, x.Dropped, x.Tail)
}

// Text returns the text printed on the main screen since Mark: the lines that scrolled off,
// and the lines on the screen down to the cursor or the last line with text. It ends with a
// newline if the cursor is on an empty row. Text above the limit is cut between lines unless
// they are too long.
func (t *Terminal) Text() Text {
	return t.record.text(t.appendVisible(nil))
}

// appendVisible appends the part of the record that is still on the screen.
func (t *Terminal) appendVisible(dst []byte) []byte {
	last := t.rows - 1
	for end := t.mainCursor().y; last > end && !t.main.row(last).written(); {
		last--
	}
	first := 0
	if !t.record.begun {
		for first < t.markY && !t.main.row(first).written() {
			first++
		}
	}
	for y := first; y <= last; y++ {
		r := t.main.row(y)
		if !r.cont && (y > first || t.record.begun) {
			dst = append(dst, '\n')
		}
		dst = t.appendText(dst, r, t.markColumn(r, y))
	}
	return dst
}

// markColumn returns the column where the record starts in row y: the column of the mark,
// unless the program has written before it.
func (t *Terminal) markColumn(r *row, y int) int {
	if y != t.markY {
		return 0
	}
	for _, c := range r.cells[:min(t.markX, t.cols)] {
		if c != 0 && c&old == 0 {
			return 0
		}
	}
	return t.markX
}

// mainCursor returns the cursor of the main screen, even while the alternate one is shown.
func (t *Terminal) mainCursor() *cursor {
	if t.Alt() {
		return &t.parked
	}
	return &t.cursor
}

// Screen returns the text of each shown row, without trailing blanks.
func (t *Terminal) Screen() []string {
	rows := make([]string, t.rows)
	for y := range rows {
		t.line = t.appendScreen(t.line[:0], t.grid.row(y))
		rows[y] = string(t.line)
	}
	return rows
}

// Position is a position on the screen, counted from 0.
type Position struct{ Col, Row int }

// Cursor returns the position of the cursor and whether it is shown.
func (t *Terminal) Cursor() (at Position, visible bool) {
	return Position{Col: t.x, Row: t.y}, !t.modes.hidden
}

// Alt reports whether the alternate screen is shown, which most full-screen programs use.
func (t *Terminal) Alt() bool { return t.grid == &t.alternate }

// Title returns the latest window title of a program.
func (t *Terminal) Title() string { return t.title }

// Size returns the size.
func (t *Terminal) Size() (cols, rows int) { return t.cols, t.rows }

// AppCursor reports whether arrow keys must be sent as ESC O A instead of ESC [ A.
func (t *Terminal) AppCursor() bool { return t.modes.appCursor }

// BracketedPaste reports whether pasted text must be sent between ESC [ 200 ~ and
// ESC [ 201 ~.
func (t *Terminal) BracketedPaste() bool { return t.modes.paste }

func clamp(v, low, high int) int { return min(max(v, low), high) }
