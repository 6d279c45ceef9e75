// Package vt interprets what programs print on a terminal, to answer two questions: what a person would have
// read of a command's output, as plain text, and what the screen shows now.
//
// It owns the screen (main and alternate), the record of text since the last Mark, and the parser's state. All
// of it is bounded, whatever is written. It keeps no colours, draws nothing, reads and writes no file, and is
// not safe for concurrent use: its owner locks.
//
// For output without cursor movements the text is exactly what was printed, whatever the width of the screen:
// long lines come back unbroken, tabs stay tabs, printed trailing spaces stay. What was overwritten or erased is
// gone. A space printed over something erases it, so the remains of a progress bar do not pad the line that
// replaced it. Lines that scrolled off the top are final.
package vt

import "fmt"

// Bounds on sizes; New and Resize clamp to them.
const (
	MaxCols = 1000
	MaxRows = 500
)

// DefaultLimit is the number of bytes of text a record keeps when Options does not say.
const DefaultLimit = 1 << 20

// Options configures a Terminal. The functions are called by Write, at the place in the stream where their cause
// stands: everything before it has been interpreted, nothing after it. They may call every method of the
// Terminal but Write, and should not block, since Write waits for them.
type Options struct {
	// Limit is how many bytes of scrolled-off text a record keeps, half from its start and half from its end;
	// 0 means DefaultLimit.
	Limit int
	// OSC is given the body of every operating system command: what stands between ESC ] and its terminator.
	// A body that was interrupted, or is longer than 8 KiB, is not given. The slice is only valid during the call.
	OSC func(body []byte)
	// Reply is given the answer to a query (cursor position, device attributes, size) which a terminal would
	// type. The slice is only valid during the call. Without it queries stay unanswered.
	Reply func(answer []byte)
}

// Terminal is an interpreter with its screen. Use New.
type Terminal struct {
	opts       Options
	cols, rows int

	main, alternate grid
	grid            *grid // the one shown
	parked          cursor
	saved           [2]cursor // by ESC 7, for the main and the alternate screen
	cursor
	top, bottom int // the scrolling region, inclusive
	tabs        []bool
	modes       modes
	title       string

	text clusters
	parser

	record       record // of the rows that scrolled off since the mark
	markX, markY int    // the mark, on the main screen; negative when its row has scrolled off
	line         []byte // scratch for a row's text
}

// cursor is what ESC 7 saves.
type cursor struct {
	x, y   int
	wrap   bool // a character stands in the last column and the next one starts a new row
	origin bool // positions count from the top of the scrolling region
	sets   [4]byte
	set    int // the one of sets in use
	single int // used for the next character only; -1 for none
}

type modes struct {
	insert, newline, noWrap bool
	hidden                  bool
	appCursor, paste        bool
}

// New makes a terminal with an empty screen and an empty record.
func New(cols, rows int, opts Options) *Terminal {
	if opts.Limit <= 0 {
		opts.Limit = DefaultLimit
	}
	t := &Terminal{opts: opts, cols: clamp(cols, 1, MaxCols), rows: clamp(rows, 1, MaxRows)}
	t.record.limit = opts.Limit
	t.Reset()
	return t
}

// Reset makes everything as after New, at the present size.
func (t *Terminal) Reset() {
	t.parser = parser{body: t.body[:0]}
	t.title = ""
	t.reset()
}

// reset is what a program can ask for: all but the parser, in whose middle it happens, and the title.
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

// SoftReset brings the terminal back to sane modes after a program that ended without cleaning up: main screen,
// whole-screen scrolling, ASCII, visible cursor. What the screen shows and the record stay.
func (t *Terminal) SoftReset() {
	t.leaveAlternate(true)
	t.softReset()
}

// softReset is what a program can ask for: it stays on its screen.
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

// Text is what a record holds.
type Text struct {
	Head    string // everything, or the start when characters were dropped
	Dropped int64  // the number of characters missing between Head and Tail
	Tail    string // the end, when characters were dropped
}

// String joins the parts, with a note in the place of what was dropped.
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

// Text is the text printed on the main screen since Mark: lines that scrolled off, and those still on the screen
// down to the cursor or the last one with text. Rows are separated by newlines; a final newline is there when
// the cursor stands on an empty row. Text cut at the limit is cut between lines where lines are short enough.
func (t *Terminal) Text() Text {
	return t.record.text(t.appendVisible(nil))
}

// appendVisible appends the record's part that is still on the screen.
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

// markColumn is the column where the record starts in row y: the mark's, unless the program went back and wrote
// before it.
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

// mainCursor is where the cursor stands on the main screen, also while the alternate one is shown.
func (t *Terminal) mainCursor() *cursor {
	if t.Alt() {
		return &t.parked
	}
	return &t.cursor
}

// Screen is the text of each row shown now, without trailing blanks.
func (t *Terminal) Screen() []string {
	rows := make([]string, t.rows)
	for y := range rows {
		t.line = t.appendScreen(t.line[:0], t.grid.row(y))
		rows[y] = string(t.line)
	}
	return rows
}

// Position is a place on the screen, counted from 0.
type Position struct{ Col, Row int }

// Cursor tells where the cursor stands, and whether it is shown.
func (t *Terminal) Cursor() (at Position, visible bool) {
	return Position{Col: t.x, Row: t.y}, !t.modes.hidden
}

// Alt tells whether the alternate screen is shown, as by most full-screen programs.
func (t *Terminal) Alt() bool { return t.grid == &t.alternate }

// Title is the window title that a program set last.
func (t *Terminal) Title() string { return t.title }

// Size tells the size.
func (t *Terminal) Size() (cols, rows int) { return t.cols, t.rows }

// AppCursor tells whether the program wants arrow keys as ESC O A instead of ESC [ A.
func (t *Terminal) AppCursor() bool { return t.modes.appCursor }

// BracketedPaste tells whether the program wants pasted text between ESC [ 200 ~ and ESC [ 201 ~.
func (t *Terminal) BracketedPaste() bool { return t.modes.paste }

func clamp(v, low, high int) int { return min(max(v, low), high) }
