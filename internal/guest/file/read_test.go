package file

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/guest/file/internal/editor"
	"github.com/cove-sandbox/cove/internal/guest/file/internal/text"
	"github.com/cove-sandbox/cove/internal/guest/internal/pyerr"
)

func TestReadRange(t *testing.T) {
	t.Parallel()
	s := newSandbox(t)
	s.put(map[string]string{"f": "l0\nl1\nl2\nl3\n", "open": "l0\nl1", "crlf": "l0\r\nl1\r\n", "empty": "", "blank": "\n\nx\n"})
	for _, c := range []struct {
		file       string
		start, end any
		want       string
	}{
		{"f", nil, nil, "l0\nl1\nl2\nl3\n"},
		{"f", 0, 1, "l0"},
		{"f", 1, 3, "l1\nl2"},
		{"f", 2, nil, "l2\nl3"},
		{"f", nil, 2, "l0\nl1"},
		{"f", 3, 99, "l3"},
		{"f", 4, 9, ""},
		{"f", 99, nil, ""},
		{"f", 2, 2, ""},
		{"f", 3, 1, ""},
		{"f", -1, nil, "l3"},
		{"f", -2, nil, "l2\nl3"},
		{"f", -99, nil, "l0\nl1\nl2\nl3"},
		{"f", -3, -1, "l1\nl2"},
		{"f", 1, -1, "l1\nl2"},
		{"f", -3, 2, "l1"},
		{"f", 0, -99, ""},
		{"open", -1, nil, "l1"},
		{"open", 1, 2, "l1"},
		{"open", 0, -1, "l0"},
		{"crlf", 0, 1, "l0"},
		{"crlf", 0, 2, "l0\r\nl1"},
		{"empty", nil, nil, ""},
		{"empty", 0, 5, ""},
		{"empty", -2, nil, ""},
		{"blank", 0, 2, "\n"},
		{"blank", -2, nil, "\nx"},
	} {
		out := want[text.ReadOut](s, "file_read", args{"file": c.file, "start_line": c.start, "end_line": c.end})
		if out.Content != c.want {
			t.Errorf("%s [%v,%v): %q, want %q", c.file, c.start, c.end, out.Content, c.want)
		}
	}
}

// Ranges are the same as slices of the complete text, also where buffers end.
func TestReadRangeOfLargerFile(t *testing.T) {
	t.Parallel()
	s := newSandbox(t)
	var lines []string
	for i := range 30_000 {
		lines = append(lines, fmt.Sprintf("%d %s", i, strings.Repeat("x", i%37)))
	}
	s.put(map[string]string{"f": strings.Join(lines, "\n") + "\n"})
	for _, r := range [][2]int{{0, 1}, {29_999, 30_000}, {12_345, 12_400}, {0, 30_000}, {29_000, 40_000}} {
		want1 := strings.Join(lines[r[0]:min(r[1], len(lines))], "\n")
		got := want[text.ReadOut](s, "file_read", args{"file": "f", "start_line": r[0], "end_line": r[1]})
		back := want[text.ReadOut](s, "file_read", args{"file": "f", "start_line": r[0] - len(lines), "end_line": r[1]})
		if got.Content != want1 || back.Content != want1 {
			t.Errorf("%v: %d and %d bytes, want %d", r, len(got.Content), len(back.Content), len(want1))
		}
	}
}

func TestReadIsBounded(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, func(c *Config) { c.MaxRead = 1 << 20 })
	f, err := os.Create(s.dir + "/huge")
	must(t, err)
	_, err = f.WriteString("first\nsecond\n")
	must(t, err)
	must(t, f.Truncate(5<<30)) // a hole: no disk is used
	must(t, f.Close())
	if out := want[text.ReadOut](s, "file_read", args{"file": "huge", "end_line": 2}); out.Content != "first\nsecond" {
		t.Errorf(`got %q, want content "first\nsecond"`, out.Content)
	}
	for _, in := range []args{{"file": "huge"}, {"file": "huge", "start_line": 1}, {"file": "huge", "start_line": -1}} {
		_, err := do[text.ReadOut](s, "file_read", in)
		fails(t, err, pyerr.IO, "OSError")
		if f := failure(t, err); *f.ErrnoName != "EFBIG" || !strings.Contains(f.Message, "range") {
			t.Errorf(`got %+v, want errno name "EFBIG" and message that contains "range"`, f)
		}
	}
	_, err = do[text.ReplaceOut](s, "file_replace", args{"file": "huge", "old_str": "a", "new_str": "b"})
	fails(t, err, pyerr.IO, "OSError")
	if out := want[editor.EditOut](s, "file_str_replace_editor", args{"command": "view", "path": "huge",
		"view_range": []int{1, 2}}); !strings.Contains(out.Output, "     2\tsecond\n") {
		t.Errorf(`got %q, want output that contains "     2\tsecond\n"`, out.Output)
	}
}

func TestReadNotText(t *testing.T) {
	t.Parallel()
	s := newSandbox(t)
	s.put(map[string]string{"latin": "ok\ncaf\xe9\n"})
	_, err := do[text.ReadOut](s, "file_read", args{"file": "latin"})
	fails(t, err, pyerr.Decode, "UnicodeDecodeError")
	e, _ := op.AsError(err)
	if !strings.Contains(e.Msg, "offset 6") || !strings.Contains(e.Hint, "download") {
		t.Errorf(`got %q %q, want an error that contains "offset 6" and a hint that contains "download"`, e.Msg, e.Hint)
	}
	if out := want[text.ReadOut](s, "file_read", args{"file": "latin", "end_line": 1}); out.Content != "ok" {
		t.Errorf(`a range that is text: got %q, want content "ok"`, out.Content)
	}
}

func TestSearch(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, func(c *Config) { c.SearchTime = 2 * time.Second })
	s.put(map[string]string{"f": "alpha=1\nbeta = 22\n\ngamma=333\r\ndoubled doubled\nprice: 5€\n", "evil": strings.Repeat("a", 40) + "!\n"})
	for _, c := range []struct {
		regex string
		want  []int
	}{
		{`^\w+=\d+$`, []int{0, 3}},
		{`(?P<word>\w+) (?P=word)$`, []int{4}},
		{`(\w+) \1`, []int{4}},
		{`(?i)ALPHA`, []int{0}},
		{`\d{,2}$`, []int{0, 1, 2, 3, 4, 5}},
		{`(?<=beta = )\d+`, []int{1}},
		{`^(?!alpha|beta).*=`, []int{3}},
		{`[[]|[]x]|€\Z`, []int{5}},
		{`(?P<a>x)?(d)oubled \2`, []int{4}},
		{`nothing`, nil},
		{``, []int{0, 1, 2, 3, 4, 5}},
	} {
		out := want[text.SearchOut](s, "file_search", args{"file": "f", "regex": c.regex})
		if diff := cmp.Diff(append([]int{}, c.want...), out.LineNumbers); diff != "" {
			t.Errorf("%s: got %s, want no difference", c.regex, diff)
		}
	}
	if out := want[text.SearchOut](s, "file_search", args{"file": "f", "regex": "gamma"}); out.Matches[0] != "gamma=333" {
		t.Errorf(`got %q, want first match "gamma=333"`, out.Matches)
	}
	for _, bad := range []string{"(", "[a", "*x", `(?P=none)`} {
		_, err := do[text.SearchOut](s, "file_search", args{"file": "f", "regex": bad})
		fails(t, err, pyerr.Target, "re.error")
	}
	_, err := do[text.SearchOut](s, "file_search", args{"file": "evil", "regex": `^(a+)+$`})
	fails(t, err, pyerr.IO, "TimeoutError")
}
