package vt

import (
	"math/rand/v2"
	"slices"
	"testing"
)

func TestResize(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		before     string // on 10 columns, 4 rows
		cols, rows int
		after      string
		screen     []string
		text       string
	}{
		"wider":                   {"0123456789abc", 20, 4, "x", []string{"0123456789abcx", "", "", ""}, "0123456789abcx"},
		"narrower":                {"0123456789abc", 5, 4, "x", []string{"01234", "56789", "abcx", ""}, "0123456789abcx"},
		"narrower and scrolled":   {"0123456789abc", 3, 4, "x", []string{"345", "678", "9ab", "cx"}, "0123456789abcx"},
		"to the row's end":        {"abcde", 5, 4, "x", []string{"abcde", "x", "", ""}, "abcdex"},
		"from the row's end":      {"0123456789", 12, 4, "x", []string{"0123456789x", "", "", ""}, "0123456789x"},
		"cursor right of text":    {"ab" + esc + "[9G", 5, 4, "x", []string{"ab  x", "", "", ""}, "ab  x"},
		"cursor in text":          {"0123456789abc" + esc + "[2D", 5, 4, "x", []string{"01234", "56789", "axc", ""}, "0123456789axc"},
		"fewer rows":              {"1\r\n2\r\n3\r\n4", 10, 2, "x", []string{"3", "4x"}, "1\n2\n3\n4x"},
		"fewer rows, empty below": {"1\r\n2", 10, 2, "x", []string{"1", "2x"}, "1\n2x"},
		"fewer rows, text below":  {"1\r\n2\r\n3" + esc + "[2;2H", 10, 2, "x", []string{"2x", "3"}, "1\n2x\n3"},
		"more rows":               {"1\r\n2\r\n3\r\n4\r\n5", 10, 6, "x", []string{"2", "3", "4", "5x", "", ""}, "1\n2\n3\n4\n5x"},
		"wide at the new edge":    {"ab世界", 5, 4, "x", []string{"ab世", "界x", "", ""}, "ab世界x"},
		"tab":                     {"a\tb", 6, 4, "x", []string{"a", "bx", "", ""}, "a\tbx"},
		"alternate screen": {"0123456789abc" + esc + "[?1049h" + esc + "[H0123456789" + esc + "[4;10Hx",
			5, 2, "y", []string{"01234", "    y"}, "0123456789abc"},
		"back from alternate": {"0123456789abc" + esc + "[?1049hvim", 5, 4, esc + "[?1049lx",
			[]string{"01234", "56789", "abcx", ""}, "0123456789abcx"},
		"back from alternate, scrolled": {"1\r\n2\r\n3\r\n4" + esc + "[?1049hvim", 10, 2, esc + "[?1049lx", []string{"3", "4x"}, "1\n2\n3\n4x"},
		"scrolling region":              {esc + "[2;3r", 10, 3, esc + "[3;1H1\r\n2", []string{"", "1", "2"}, "\n\n1\n2"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			vt := New(10, 4, Options{})
			vt.Write([]byte(c.before))
			vt.Resize(c.cols, c.rows)
			check(t, vt)
			vt.Write([]byte(c.after))
			check(t, vt)
			if cols, rows := vt.Size(); cols != c.cols || rows != c.rows {
				t.Errorf("got size %d by %d, want %d by %d", cols, rows, c.cols, c.rows)
			}
			if got := vt.Screen(); !slices.Equal(got, c.screen) {
				t.Errorf("got screen %q, want %q", got, c.screen)
			}
			if got := vt.Text().String(); got != c.text {
				t.Errorf("got text %q, want %q", got, c.text)
			}
		})
	}
}

// TestTextIsExactAfterResize prints plain text and changes the size repeatedly.
func TestTextIsExactAfterResize(t *testing.T) {
	t.Parallel()
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 6))
		vt := New(2+r.IntN(40), 1+r.IntN(12), Options{})
		vt.Write([]byte(tty(randomText(r, r.IntN(30)) + "\n$ ")))
		vt.Mark()
		want := ""
		for range 1 + r.IntN(5) {
			in := "." + randomText(r, r.IntN(40)) + "."
			want += in
			vt.Write([]byte(tty(in)))
			vt.Resize(2+r.IntN(40), 1+r.IntN(12))
			check(t, vt)
			if got := vt.Text().String(); got != want {
				t.Fatalf("seed %d, %d by %d:\n got  %q\n want %q", seed, vt.cols, vt.rows, got, want)
			}
		}
	}
}

func TestSizeIsClamped(t *testing.T) {
	t.Parallel()
	vt := New(-1, 0, Options{})
	vt.Write([]byte("世a\u0301\tb\r\n\x1b[2;3r\x1b[5Mx"))
	check(t, vt)
	if got := vt.Text().String(); got != "世a\u0301\tb\nx" {
		t.Errorf(`got %q on one cell, want "世a\u0301\tb\nx"`, got)
	}
	vt.Resize(1<<30, 1<<30)
	if cols, rows := vt.Size(); cols != MaxCols || rows != MaxRows {
		t.Errorf("got size %d by %d, want %d by %d", cols, rows, MaxCols, MaxRows)
	}
	check(t, vt)
}

func TestSoftReset(t *testing.T) {
	t.Parallel()
	vt := New(10, 4, Options{})
	vt.Write([]byte("a\r\n" + esc + "[?1049h" + esc + "[?25l" + esc + "[4h" + esc + "[2;3r" + esc + "(0" + esc +
		"[?6h" + esc + "[?7l" + esc + "[?1h" + esc + "[?2004h" + esc + "]2;vim\avim"))
	at, shown := vt.Cursor()
	if !vt.Alt() || shown || !vt.AppCursor() || !vt.BracketedPaste() || vt.Title() != "vim" {
		t.Fatalf(`got cursor %v and modes %v, want the alternate screen, a hidden cursor, application keys, bracketed paste and title "vim"`,
			at, vt.modes)
	}
	vt.SoftReset()
	vt.Write([]byte("lqk\r\n0123456789x\r\n\r\n"))
	at, shown = vt.Cursor()
	if got, want := vt.Text().String(), "a\nlqk\n0123456789x\n\n"; got != want || vt.Alt() || !shown || vt.AppCursor() || vt.BracketedPaste() {
		t.Errorf("got text %q, modes %v, want text %q and default modes", got, vt.modes, want)
	}
	if want := (Position{Col: 0, Row: 3}); at != want {
		t.Errorf("got cursor at %v, want %v", at, want)
	}
	vt.Write([]byte("x" + esc + "[!p" + esc + "[?1049hin" + esc + "[!p"))
	if !vt.Alt() {
		t.Error("got the main screen after a program's own soft reset, want the alternate screen")
	}
}

func TestScreen(t *testing.T) {
	t.Parallel()
	vt := New(12, 3, Options{})
	vt.Write([]byte("$ ls  \r\n\ta\t"))
	vt.Mark()
	vt.Write([]byte("b世e\u0301\r\n  x  "))
	want := []string{"        a  b", "世e\u0301", "  x"}
	if got := vt.Screen(); !slices.Equal(got, want) {
		t.Errorf("got screen %q, want %q", got, want)
	}
	if got, want := vt.Text().String(), "b世e\u0301\n  x  "; got != want {
		t.Errorf("got text %q, want %q", got, want)
	}
}
