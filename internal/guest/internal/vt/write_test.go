package vt

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

func TestMain(m *testing.M) {
	testenv.Main(m)
}

// events are the calls of the hooks, with the text at that time.
type events []string

func (e *events) terminal(cols, rows int) *Terminal {
	var vt *Terminal
	vt = New(cols, rows, Options{
		Limit: 4 << 10,
		OSC: func(body []byte) {
			at, _ := vt.Cursor()
			*e = append(*e, fmt.Sprintf("%s at %v after %q", body, at, vt.Text().String()))
			if string(body) == "mark" {
				vt.Mark()
			}
		},
		Reply: func(reply []byte) { *e = append(*e, string(reply)) },
	})
	return vt
}

// TestHooks checks the calls of the hooks, each with the text before it.
func TestHooks(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", maxBody)
	for name, c := range map[string]struct {
		in   string
		want []string
	}{
		"ended by BEL":          {"ab" + esc + "]1;x\acd", []string{`1;x at {2 0} after "ab"`}},
		"ended by ST":           {"ab" + esc + "]1;x" + esc + "\\cd", []string{`1;x at {2 0} after "ab"`}},
		"empty":                 {esc + "]\a", []string{` at {0 0} after ""`}},
		"two":                   {esc + "]a\a" + esc + "]b\a", []string{`a at {0 0} after ""`, `b at {0 0} after ""`}},
		"mark":                  {"a\r\n" + esc + "]mark\ab\r\n" + esc + "]x\a", []string{`mark at {0 1} after "a\n"`, `x at {0 2} after "b\n"`}},
		"UTF-8 with byte 0x9c":  {esc + "]✳\a", []string{`✳ at {0 0} after ""`}},
		"right edge":            {"0123456789" + esc + "]x\a", []string{`x at {9 0} after "0123456789"`}},
		"in a control sequence": {"a" + esc + "[1;" + esc + "]x\ab", []string{`x at {1 0} after "a"`}},
		"in another OSC":        {"a" + esc + "]y" + esc + "]x\ab", []string{`x at {1 0} after "a"`}},
		"in a DCS":              {"a" + esc + "Py" + esc + "]x\ab", []string{`x at {1 0} after "a"`}},
		"in an APC":             {"a" + esc + "_y" + esc + "]x" + esc + "\\b", []string{`x at {1 0} after "a"`}},
		"in a character":        {"a\xe4\xb8" + esc + "]x\ab", []string{"x at {2 0} after \"a\ufffd\""}},
		"BEL does not end DCS":  {"a" + esc + "Py\a]x\a" + esc + "\\b", nil},
		"canceled":              {esc + "]x\x18" + esc + "]y\x1a" + esc + "]z" + esc + "[m", nil},
		"eight-bit is text":     {"\u009dx\a\x9dx\a", nil},
		"as long as allowed":    {esc + "]" + long + "\a", []string{long + ` at {0 0} after ""`}},
		"too long":              {esc + "]" + long + "x\a" + esc + "]y\a", []string{`y at {0 0} after ""`}},
		"after an endless DCS":  {"a" + esc + "P" + long + long + esc + "]y\a", []string{`y at {1 0} after "a"`}},
		"on the other screen":   {"a" + esc + "[?1049hvim" + esc + "]y\a", []string{`y at {4 0} after "a"`}},
		"cursor position":       {"ab\r\nc" + esc + "[6n", []string{esc + "[2;2R"}},
		"in origin mode":        {esc + "[2;3r" + esc + "[?6h" + esc + "[6n", []string{esc + "[1;1R"}},
		"status":                {esc + "[5n", []string{esc + "[0n"}},
		"attributes": {esc + "[c" + esc + "Z" + esc + "[>c" + esc + "[1c",
			[]string{esc + "[?62;22c", esc + "[?62;22c", esc + "[>0;10;1c"}},
		"size":         {esc + "[18t", []string{esc + "[8;4;10t"}},
		"unknown mode": {esc + "[?2026$p", []string{esc + "[?2026;0$y"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var got events
			got.terminal(10, 4).Write([]byte(c.in))
			if !slices.Equal(got, c.want) {
				t.Errorf("\n in   %.200q\n got  %.200q\n want %.200q", c.in, got, c.want)
			}
		})
	}
}

// view is the complete visible state of a terminal.
type view struct {
	Screen   []string
	Text     Text
	At       Position
	Shown    bool
	Alt      bool
	Title    string
	Modes    modes
	Hooks    events
	Scrolled int
}

func viewOf(vt *Terminal, hooks events) view {
	at, shown := vt.Cursor()
	return view{vt.Screen(), vt.Text(), at, shown, vt.Alt(), vt.Title(), vt.modes, hooks, vt.markY}
}

// check checks the invariants of a terminal.
func check(t *testing.T, vt *Terminal) {
	t.Helper()
	if vt.x < 0 || vt.x >= vt.cols || vt.y < 0 || vt.y >= vt.rows {
		t.Fatalf("got cursor at %d,%d, want it inside %d by %d", vt.x, vt.y, vt.cols, vt.rows)
	}
	if vt.top < 0 || vt.top > vt.bottom || vt.bottom >= vt.rows || vt.markY > vt.rows {
		t.Fatalf("got region %d to %d and mark in row %d, want them inside %d rows", vt.top, vt.bottom, vt.markY, vt.rows)
	}
	for _, g := range []*grid{&vt.main, vt.grid} {
		if len(g.rows) != vt.rows {
			t.Fatalf("got %d rows, want %d", len(g.rows), vt.rows)
		}
		for y := range vt.rows {
			r := g.row(y)
			if len(r.cells) != vt.cols || r.used > vt.cols {
				t.Fatalf("row %d: got %d cells, %d used, want %d cells and at most %d used", y, len(r.cells), r.used, vt.cols, vt.cols)
			}
			for x, c := range r.cells {
				if x >= r.used && c != 0 {
					t.Fatalf("row %d, column %d: got %x, want empty cells from %d", y, x, c, r.used)
				}
				if c&spill != 0 && (x == 0 || r.cells[x-1] == 0) {
					t.Fatalf("row %d, column %d: got a continuation, want a character before it", y, x)
				}
				if c&grouped != 0 && int(c&valueMask) >= len(vt.text.list) {
					t.Fatalf("row %d, column %d: got cluster %d, want one of %d", y, x, c&valueMask, len(vt.text.list))
				}
				if c != 0 && c&old == 0 && !r.fresh {
					t.Fatalf("row %d, column %d: got a new cell, want none in an old row", y, x)
				}
			}
		}
	}
	if len(vt.record.head) > vt.opts.Limit || vt.record.size > vt.opts.Limit/2+vt.record.block() {
		t.Fatalf("got %d and %d bytes in the record, want at most %d and %d",
			len(vt.record.head), vt.record.size, vt.opts.Limit, vt.opts.Limit/2+vt.record.block())
	}
	if vt.text.bytes > maxClusterBytes || len(vt.text.list) > maxClusters || len(vt.body) > maxBody {
		t.Fatalf("got %d bytes in %d clusters, %d in a string, want at most %d bytes in %d clusters and %d in a string",
			vt.text.bytes, len(vt.text.list), len(vt.body), maxClusterBytes, maxClusters, maxBody)
	}
	if text := vt.Text(); !utf8.ValidString(text.Head) || !utf8.ValidString(text.Tail) {
		t.Fatalf("got text %q and %q, want valid UTF-8", text.Head, text.Tail)
	}
	for _, s := range vt.Screen() {
		if !utf8.ValidString(s) || strings.ContainsAny(s, "\t\r\n\x1b\x00") {
			t.Fatalf("got screen row %q, want valid UTF-8 without control characters", s)
		}
	}
}

// sameWhenDivided writes a stream at once, byte by byte and in two pieces, and expects no
// difference.
func sameWhenDivided(t *testing.T, cols, rows int, stream []byte, cut int) {
	t.Helper()
	var hooks [3]events
	whole, bytewise, halves := hooks[0].terminal(cols, rows), hooks[1].terminal(cols, rows), hooks[2].terminal(cols, rows)
	whole.Write(stream)
	check(t, whole)
	for i := range stream {
		bytewise.Write(stream[i : i+1])
	}
	halves.Write(stream[:cut])
	check(t, halves)
	halves.Write(stream[cut:])
	want := viewOf(whole, hooks[0])
	for i, vt := range []*Terminal{bytewise, halves} {
		if got := viewOf(vt, hooks[i+1]); !reflect.DeepEqual(got, want) {
			t.Fatalf("%d by %d, cut at %d: %q\n got  %+v\n want %+v", cols, rows, cut, stream, got, want)
		}
	}
}

func TestDividedStream(t *testing.T) {
	t.Parallel()
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 4))
		cols, rows := 2+r.IntN(30), 2+r.IntN(10)
		stream := []byte(randomStream(r, cols, rows, r.IntN(20)) + randomText(r, r.IntN(20)) +
			"\x1b]mark\a" + randomStream(r, cols, rows, r.IntN(20)))
		for range r.IntN(5) { // damage it
			stream[r.IntN(len(stream))] = byte(r.IntN(256))
		}
		sameWhenDivided(t, cols, rows, stream, r.IntN(len(stream)+1))
	}
}

func FuzzWrite(f *testing.F) {
	r := rand.New(rand.NewPCG(1, 5))
	for range 20 {
		f.Add(uint8(r.IntN(40)), uint8(r.IntN(12)), uint16(r.IntN(50)), []byte(randomStream(r, 20, 5, 30)))
	}
	f.Add(uint8(3), uint8(2), uint16(1), []byte("世\u0301\ta\x1b]mark\a\x1b[?1049h\x1b[2;1Hx\x1b[?1049l\x1bP\x1b\\\x1bc"))
	f.Add(uint8(1), uint8(1), uint16(1), []byte("世\u0301\t\t\u0301世\x1b[9b\xff\xe4\xb8"))
	f.Fuzz(func(t *testing.T, cols, rows uint8, cut uint16, stream []byte) {
		sameWhenDivided(t, int(cols), int(rows), stream, int(cut)%(len(stream)+1))
		var hooks events
		vt := hooks.terminal(int(cols), int(rows))
		vt.Write(stream)
		vt.Resize(1+int(cut)%50, 1+int(cut)/50%20)
		check(t, vt)
		vt.Mark()
		check(t, vt)
		vt.Write(stream)
		vt.SoftReset()
		vt.Resize(int(cols), int(rows))
		check(t, vt)
		vt.Reset()
		if got := vt.Text(); got != (Text{}) {
			t.Fatalf("got %q after Reset, want no text", got)
		}
	})
}

// TestClustersAreLimited prints more distinct combinations than are kept.
func TestClustersAreLimited(t *testing.T) {
	t.Parallel()
	vt := New(MaxCols, MaxRows, Options{})
	var b bytes.Buffer
	for i := range rune(3 * maxClusters) {
		b.WriteRune('a' + i%26)
		for d := i; d > 0; d /= 64 {
			b.WriteRune(0x300 + d%64)
		}
	}
	vt.Write(b.Bytes())
	check(t, vt)
	// Reach the limit of bytes.
	for i := range rune(10000) {
		b.Reset()
		b.WriteRune('a')
		b.WriteString(strings.Repeat("\u0301", 60))
		b.WriteRune(0x300 + i%64)
		b.WriteRune(0x300 + i/64%64)
		vt.Write(b.Bytes())
	}
	check(t, vt)
	// After the screen is cleared, new combinations are kept again.
	vt.Write([]byte("\x1b[2J\x1b[H"))
	vt.Mark()
	vt.text.deny = 0
	vt.Write([]byte("x\u0301\u0302\u0303"))
	if got := vt.Text().Head; got != "x\u0301\u0302\u0303" {
		t.Errorf(`got %q, want "x\u0301\u0302\u0303"`, got)
	}
}

func TestOutputAllocatesNoMemory(t *testing.T) {
	vt := New(80, 24, Options{Limit: 64 << 10})
	line := []byte(strings.Repeat("0123456789", 9) + "\r\n")
	vt.Write(bytes.Repeat(line, 5000))
	if n := testing.AllocsPerRun(10000, func() { vt.Write(line) }); n > 0 {
		t.Errorf("got %v allocations per line, want 0", n)
	}
	check(t, vt)
}
