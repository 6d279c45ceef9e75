package vt

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf8"
)

// tty converts newlines like a terminal's line discipline.
func tty(s string) string { return strings.ReplaceAll(s, "\n", "\r\n") }

func textOf(t *testing.T, cols, rows int, stream string) string {
	t.Helper()
	vt := New(cols, rows, Options{})
	if n, err := vt.Write([]byte(stream)); n != len(stream) || err != nil {
		t.Fatalf("got %d, %v from Write, want %d", n, err, len(stream))
	}
	return vt.Text().String()
}

// textCase is a stream and its text on a screen of 10 columns and 4 rows.
type textCase struct{ in, want string }

const esc = "\x1b"

// lineCases print lines without editing the screen, except for progress bars.
var lineCases = map[string]textCase{
	"nothing":                     {"", ""},
	"word":                        {"hello", "hello"},
	"lines":                       {"a\r\nb\r\n", "a\nb\n"},
	"empty lines":                 {"\r\n\r\na\r\n\r\n", "\n\na\n\n"},
	"scrolled off":                {"1\r\n2\r\n3\r\n4\r\n5\r\n6\r\n", "1\n2\n3\n4\n5\n6\n"},
	"as wide as the screen":       {"0123456789\r\nx\r\n", "0123456789\nx\n"},
	"wrapped":                     {"0123456789abc\r\nx\r\n", "0123456789abc\nx\n"},
	"wrapped over many rows":      {strings.Repeat("0123456789", 9) + "\r\nx", strings.Repeat("0123456789", 9) + "\nx"},
	"trailing spaces stay":        {"ab  \r\n", "ab  \n"},
	"only spaces":                 {"   \r\n", "   \n"},
	"spaces across the edge":      {"012345678    \r\n", "012345678    \n"},
	"padding is removed":          {"ab" + esc + "[5C\r\n", "ab\n"},
	"padding inside stays":        {"ab" + esc + "[3Cc\r\n", "ab   c\n"},
	"progress by return":          {"10%\r50%\r100%\r\n", "100%\n"},
	"shorter over longer":         {"Download\rDone" + esc + "[K\r\n", "Done\n"},
	"blanked by spaces":           {"working\r       \rok\r\n", "ok\n"},
	"spinner by backspace":        {"| \b\b/ \b\b- \b\bdone\r\n", "done\n"},
	"typed and erased":            {"abc\b \b\b \bx", "ax"},
	"backspace stops at the edge": {"a\b\b\bb", "b"},
	"tab":                         {"a\tb\r\n", "a\tb\n"},
	"tab overwritten":             {"a\tb\r" + esc + "[3Cx\r\n", "a  x    b\n"},
	"tab at the edge":             {"012345678\tx\ty\r\n", "012345678\tx\ty\n"},
	"tab in the last column":      {"0123456789\tx\r\n", "0123456789\tx\n"},
	"trailing tabs":               {"a\t\t\t\r\n", "a\t\t\t\n"},
	"tab over text moves only":    {"0123456789\r\tX\r\n", "01234567X9\n"},
	"colors":                      {esc + "[1;31mred" + esc + "[0m" + esc + "[38;5;9m!" + esc + "[m\r\n", "red!\n"},
	"true color":                  {esc + "[38:2::1:2:3mx" + esc + "[m", "x"},
	"grep's erase at the edge":    {"012345678" + esc + "[31m9" + esc + "[m" + esc + "[Kab\r\n", "0123456789ab\n"},
}

// editCases erase, insert and delete.
var editCases = map[string]textCase{
	"erase line":                 {"abc" + esc + "[2K\rx\r\n", "x\n"},
	"erase to the left":          {"abcdef" + esc + "[3D" + esc + "[1K\r\n", "    ef\n"},
	"erase characters":           {"abcdef\r" + esc + "[2X\r\n", "  cdef\n"},
	"insert characters":          {"abc\r" + esc + "[2@xy\r\n", "xyabc\n"},
	"delete characters":          {"abcdef\r" + esc + "[2P\r\n", "cdef\n"},
	"insert mode":                {"abc\r" + esc + "[4hxy" + esc + "[4l\r\n", "xyabc\n"},
	"insert line":                {"a\r\nb" + esc + "[L\rx\r\n", "a\nx\nb"},
	"delete line":                {"a\r\nb\r\nc" + esc + "[A" + esc + "[M\r\n", "a\nc\n"},
	"progress on two lines":      {"l1 0%\r\nl2 0%\r\n" + esc + "[2Al1 99%\r\nl2 50%\r\n", "l1 99%\nl2 50%\n"},
	"up reaches only the screen": {"1\r\n2\r\n3\r\n4\r\n5" + esc + "[99Ax\r\n\n\n\n", "1\n2x\n3\n4\n5\n"},
	"clear":                      {"a\r\nb\r\n" + esc + "[H" + esc + "[2Jc\r\n", "c\n"},
	"clear with scrollback":      {"1\r\n2\r\n3\r\n4\r\n5\r\n6" + esc + "[H" + esc + "[2J" + esc + "[3Jc\r\n", "c\n"},
	"hard reset":                 {"1\r\n2\r\n3\r\n4\r\n5\r\n6" + esc + "cx\r\n", "x\n"},
}

// sequenceCases use other screens, strings, and control sequences.
var sequenceCases = map[string]textCase{
	"alternate screen":          {"a\r\n" + esc + "[?1049hvim\r\n\n\n\n\n\nmore" + esc + "[?1049lb\r\n", "a\nb\n"},
	"old alternate screen":      {"a\r\n" + esc + "7" + esc + "[?47hless" + esc + "[?47l" + esc + "8b\r\n", "a\nb\n"},
	"alternate screen still on": {"a\r\n" + esc + "[?1049hvim", "a\n"},
	"titles and strings": {"a" + esc + "]0;title\ab" + esc + "P1;2qsixel" + esc + "\\c" + esc + "_apc" +
		esc + "\\d" + esc + "^pm\ax" + esc + "\\e", "abcde"},
	"hyperlink":                  {esc + "]8;;http://x" + esc + "\\link" + esc + "]8;;" + esc + "\\", "link"},
	"string canceled by CAN":     {"a" + esc + "]0;tit\x18b" + esc + "Pdcs\x1ac", "abc"},
	"string canceled by a color": {"a" + esc + "]0;tit" + esc + "[1mb", "ab"},
	"sequence canceled by CAN":   {"a" + esc + "[12\x18b" + esc + "[3;\x1ac", "abc"},
	"escape in a sequence":       {"a" + esc + "[12" + esc + "[1mb", "ab"},
	"text in a sequence":         {"a" + esc + "[1é", "aé"},
	"control in a sequence":      {"abc" + esc + "[\r1Cx", "axc"},
	"unknown sequences": {"a" + esc + "[>4;2m" + esc + "[?u" + esc + "[=1;1u" + esc + "[?2026h" + esc +
		"[5 q" + esc + "[?1;2;3;4;5;6;7;8;9;10;11;12;13;14;15;16;17;18x" + esc + "=" + esc + ">b", "ab"},
	"bell and NUL":         {"a\a\x00b\x7fc\x05", "abc"},
	"line drawing":         {esc + "(0lqk" + esc + "(Bx", "┌─┐x"},
	"shifted line drawing": {esc + ")0\x0elqk\x0fx", "┌─┐x"},
	"single shift":         {esc + "*0" + esc + "Nqq", "─q"},
	"repeat":               {"-" + esc + "[5b", "------"},
}

// characterCases print characters beyond ASCII, and use modes and regions.
var characterCases = map[string]textCase{
	"wide":                       {"世界\r\n", "世界\n"},
	"wide at the edge":           {"012345678世x\r\n", "012345678世x\n"},
	"wide halved":                {"世界\r" + esc + "[Cx\r\n", " x界\n"},
	"combining":                  {"e\u0301x\r\n", "e\u0301x\n"},
	"combining at the edge":      {"012345678e\u0301\u0302x\r\n", "012345678e\u0301\u0302x\n"},
	"combining after wide":       {"世\u0301x", "世\u0301x"},
	"combining first":            {"\u0301\u0302abc\r\n\u0301\r\n", "\u0301\u0302abc\n\u0301\n"},
	"combining and tab":          {"\u0301\tb\u0301\t\u0301c", "\u0301\tb\u0301\t\u0301c"},
	"joined emoji":               {"👩\u200d👩\u200d👧 ❤\ufe0f", "👩\u200d👩\u200d👧 ❤\ufe0f"},
	"invalid bytes":              {"a\xffb\xc3(c\xe4\xb8d\xed\xa0\x80e\xf0\x9f\x98", "a\ufffdb\ufffd(c\ufffdd\ufffd\ufffd\ufffde"},
	"cut by an escape":           {"a\xe4\xb8" + esc + "[1mb", "a\ufffdb"},
	"eight-bit controls":         {"a\u009b1mb\u0085c", "a1mbc"},
	"no carriage return":         {"ab\ncd\n", "ab\n  cd\n"},
	"vertical tab and form feed": {"a\v\rb\f\rc", "a\nb\nc"},
	"no wrapping":                {esc + "[?7l0123456789abc\r\n", "012345678c\n"},
	"long progress bar":          {"aaaaaaaaaaaa\rbbbbbbbbbbbb\rcc" + esc + "[K\r\n", "aaaaaaaaaa\nbbbbbbbbbb\ncc\n"},
	"region scrolls":             {"1\r\n2\r\n3\r\n4" + esc + "[1;3r" + esc + "[3;1H\n\n" + esc + "[r" + esc + "[4;1H", "1\n2\n3\n\n\n4"},
	"inner region loses":         {"1\r\n2\r\n3\r\n4" + esc + "[2;3r" + esc + "[3;1H\n" + esc + "[r" + esc + "[4;2H", "1\n3\n\n4"},
	"reverse index":              {"1\r\n2" + esc + "[H" + esc + "M0\r\n\n\n", "0\n1\n2\n"},
	"cursor saved":               {"ab" + esc + "7cd" + esc + "8x", "abxd"},
	"origin mode":                {esc + "[2;3r" + esc + "[?6h" + esc + "[Hx" + esc + "[?6l" + esc + "[r", "\nx"},
	"tab stops":                  {esc + "[3g   " + esc + "H\r\tx\r\n", "   x\n"},
	"back tab":                   {"01234567x" + esc + "[Zy\r\n", "01234567y\n"},
}

func TestText(t *testing.T) {
	t.Parallel()
	for _, cases := range []map[string]textCase{lineCases, editCases, sequenceCases, characterCases} {
		for name, c := range cases {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				if got := textOf(t, 10, 4, c.in); got != c.want {
					t.Errorf("\n in  %q\n got  %q\n want %q", c.in, got, c.want)
				}
			})
		}
	}
}

// randomText returns printable text with newlines: words, spaces, tabs, wide characters, marks,
// emoji.
func randomText(r *rand.Rand, n int) string {
	pieces := []string{" ", "  ", "\t", "\n", "\n\n", "a", "word", "0123456789", "x.y", "世", "界한글", "e\u0301", "\u0301",
		"\u200d", "👩\u200d👩", "❤\ufe0f", "ＡＢ", "é", "ß", "│─┐", "\u00a0", "\ufffd", "\U0010ffff", "\ue000", "य\u093f\u0902"}
	var b strings.Builder
	for range n {
		p := pieces[r.IntN(len(pieces))]
		if r.IntN(8) == 0 {
			p = strings.Repeat(p, 1+r.IntN(30))
		}
		b.WriteString(p)
	}
	return b.String()
}

func TestPlainTextIsExact(t *testing.T) {
	t.Parallel()
	for seed := range uint64(3000) {
		r := rand.New(rand.NewPCG(seed, 1))
		in := randomText(r, r.IntN(120))
		cols, rows := 1+r.IntN(40), 1+r.IntN(12)
		if got := textOf(t, cols, rows, tty(in)); got != in {
			t.Fatalf("seed %d, %d by %d:\n got  %q\n want %q", seed, cols, rows, got, in)
		}
	}
}

// TestMarkedTextIsExact starts a record after arbitrary other text.
func TestMarkedTextIsExact(t *testing.T) {
	t.Parallel()
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 2))
		cols, rows := 2+r.IntN(40), 1+r.IntN(12)
		vt := New(cols, rows, Options{})
		for range 3 {
			before := tty(randomText(r, r.IntN(60)) + "$ ")
			in := "." + randomText(r, r.IntN(60)) // does not start with a mark that joins the previous character
			vt.Write([]byte(before))
			vt.Mark()
			if got := vt.Text().String(); got != "" {
				t.Fatalf(`seed %d: got %q in a new record, want ""`, seed, got)
			}
			vt.Write([]byte(tty(in)))
			if got := vt.Text().String(); got != in {
				t.Fatalf("seed %d, %d by %d after %q:\n got  %q\n want %q", seed, cols, rows, before, got, in)
			}
		}
	}
}

func TestMark(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ before, after, want string }{
		"at a prompt":               {"a\r\n$ ", "x\r\n", "x\n"},
		"row rewritten from start":  {"$ ", "\rhello\r\n", "hello\n"},
		"row erased":                {"$ ls", "\r" + esc + "[Kok\r\n", "ok\n"},
		"clear":                     {"a\r\nb\r\nc\r\n$ ", "x\r\n" + esc + "[H" + esc + "[Jnew\r\n", "new\n"},
		"jumps above the mark":      {"a\r\nb\r\nc\r\n$ ", esc + "[Hx\r\ny\r\n", "x\ny\n"},
		"over old text":             {"aaaa\r\nbbbb\r\n", esc + "[Hx  y  \r\n", "x  y  \n"},
		"skips old text":            {"aaaa\r\nbbbb\r\n", esc + "[H" + esc + "[2Cy\r\n", "  y\n"},
		"above and scrolled":        {"a\r\nb\r\nc\r\n$ ", esc + "[Hx\r\n\r\n\r\ny\r\nz\r\n1\r\n2\r\n", "x\n\n\ny\nz\n1\n2\n"},
		"after a full row":          {"0123456789", "x\r\n", "x\n"},
		"return after a full row":   {"0123456789", "\r\nx\r\n", "\nx\n"},
		"in the middle of text":     {"0123" + esc + "[2D", "x\r\n", "x\n"},
		"scrolled far":              {"$ ", "1\r\n2\r\n3\r\n4\r\n5\r\n6\r\n", "1\n2\n3\n4\n5\n6\n"},
		"alternate screen on":       {"$ " + esc + "[?1049hvi", esc + "[?1049l\r\nx", "\nx"},
		"reverse scrolled":          {"$ ", "ab\r\n" + esc + "[H" + esc + "Mtop\r\n\n\n", "top\nab\n\n"},
		"cursor above without text": {"a\r\nb\r\n", esc + "[H", ""},
		"apt's status line": {"$ ", "\r\n" + esc + "7" + esc + "[1;3r" + esc + "8" + "one\r\n" + esc + "7" +
			esc + "[4;1H50%" + esc + "8two\r\nthree\r\nfour\r\n" + esc + "7" + esc + "[r" + esc + "[4;1H" + esc +
			"[K" + esc + "8", "\none\ntwo\nthree\nfour\n"},
		"scrollback erased":          {"$ ", "1\r\n2\r\n3\r\n4\r\n5" + esc + "[3J", "2\n3\n4\n5"},
		"whole screen deleted":       {"a\r\nb\r\n", "x\r\n" + esc + "[H" + esc + "[9My\r\n", "y\n"},
		"mark's row pushed from top": {"a\r\n", esc + "[2;4r" + esc + "[2;1H" + esc + "[3Tz" + esc + "[r", "z"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			vt := New(10, 4, Options{})
			vt.Write([]byte(c.before))
			vt.Mark()
			vt.Write([]byte(c.after))
			if got := vt.Text().String(); got != c.want {
				t.Errorf("\n after %q\n got  %q\n want %q", c.after, got, c.want)
			}
		})
	}
}

func TestLimit(t *testing.T) {
	t.Parallel()
	var lines strings.Builder
	for i := range 20000 {
		fmt.Fprintf(&lines, "line %d é\n", i)
	}
	for name, in := range map[string]string{
		"lines":           lines.String(),
		"one line":        strings.Repeat("0123456789", 20000),
		"one line of two": strings.Repeat("é世", 20000),
		"empty lines":     strings.Repeat("\n", 100000),
	} {
		for _, limit := range []int{1, 100, 5000, 64 << 10} {
			t.Run(fmt.Sprint(name, " ", limit), func(t *testing.T) {
				t.Parallel()
				vt := New(80, 24, Options{Limit: limit})
				vt.Write([]byte(tty(in)))
				got := vt.Text()
				if !strings.HasPrefix(in, got.Head) || !strings.HasSuffix(in, got.Tail) {
					t.Fatalf("got head %.50q and tail %.50q, want those of the text", got.Head, got.Tail)
				}
				if !utf8.ValidString(got.Head) || !utf8.ValidString(got.Tail) {
					t.Errorf("got head %.50q and tail %.50q, want valid UTF-8", got.Head, got.Tail)
				}
				kept := int64(utf8.RuneCountInString(got.Head) + utf8.RuneCountInString(got.Tail))
				if want := int64(utf8.RuneCountInString(in)); kept+got.Dropped != want {
					t.Errorf("got %d characters kept and %d dropped, want %d together", kept, got.Dropped, want)
				}
				if slack := 24*80*4 + 2*vt.record.block(); len(got.Head)+len(got.Tail) > limit+slack {
					t.Errorf("got %d bytes, want at most %d", len(got.Head)+len(got.Tail), limit+slack)
				}
				if name == "lines" && limit >= 5000 && (!strings.HasSuffix(got.Head, "\n") || !strings.HasPrefix(got.Tail, "line ")) {
					t.Errorf("got ...%q and %.20q..., want both cut between lines", got.Head[len(got.Head)-20:], got.Tail)
				}
				if !strings.Contains(got.String(), fmt.Sprintf("[... %d characters dropped ...]\n", got.Dropped)) {
					t.Errorf("got %.100q, want a note of %d dropped characters", got.String(), got.Dropped)
				}
			})
		}
	}
}

func TestTextUnderTheLimitIsComplete(t *testing.T) {
	t.Parallel()
	for n := 900; n < 1100; n += 7 {
		in := strings.Repeat("é", n/4) + "\n" + strings.Repeat("line\n", n/10)
		vt := New(20, 5, Options{Limit: 2000})
		vt.Write([]byte(tty(in)))
		if got := vt.Text(); got.Dropped != 0 || got.Head != in {
			t.Fatalf("n %d: dropped %d, got %q, want dropped 0 and head %q", n, got.Dropped, got.Head, in)
		}
	}
}
