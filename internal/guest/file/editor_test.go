package file

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/guest/file/internal/editor"
	"github.com/cove-sandbox/cove/internal/guest/file/internal/text"
	"github.com/cove-sandbox/cove/internal/guest/internal/pyerr"
)

func edit(s *sandbox, command, path string, in args) (editor.EditOut, error) {
	s.t.Helper()
	all := args{"command": command, "path": path}
	for k, v := range in {
		all[k] = v
	}
	return do[editor.EditOut](s, "file_str_replace_editor", all)
}

func mustEdit(s *sandbox, command, path string, in args) editor.EditOut {
	s.t.Helper()
	out, err := edit(s, command, path, in)
	if err != nil {
		s.t.Fatalf("%s %s %v: got %v, want no error", command, path, in, err)
	}
	if out.Output == "" || out.Content != out.Output || out.Error != nil || !filepath.IsAbs(out.Path) {
		s.t.Errorf("%s: got %+v, want the same output and content, no error and an absolute path", command, out)
	}
	return out
}

func TestEditorCreateAndUndo(t *testing.T) {
	t.Parallel()
	s := newSandbox(t)
	out := mustEdit(s, "create", "new/f", args{"file_text": "one\n"})
	if out.PrevExist || out.OldContent != nil || *out.NewContent != "one\n" || s.get("new/f") != "one\n" {
		t.Errorf(`got %+v, want prev_exist false, no old content, new content "one\n" and file new/f with "one\n"`, out)
	}
	out = mustEdit(s, "create", "new/f", args{"file_text": "two\n"})
	if !out.PrevExist || *out.OldContent != "one\n" || !strings.Contains(out.Output, "overwritten") {
		t.Errorf(`got %+v, want prev_exist true, old content "one\n" and output that contains "overwritten"`, out)
	}
	mustEdit(s, "undo_edit", "new/f", nil)
	if s.get("new/f") != "one\n" {
		t.Errorf(`got %q, want file new/f with "one\n"`, s.get("new/f"))
	}
	out = mustEdit(s, "undo_edit", "new/f", nil)
	if _, err := os.Stat(s.dir + "/new/f"); err == nil || out.NewContent != nil || *out.OldContent != "one\n" {
		t.Errorf(`the file still exists: got %+v, want an error, no new content and old content "one\n"`, out)
	}
	_, err := edit(s, "undo_edit", "new/f", nil)
	fails(t, err, pyerr.Target, "ValueError")
	// A link and its file have one history.
	must(t, os.Symlink("new/f", s.dir+"/alias"))
	mustEdit(s, "create", "alias", args{"file_text": "through the link"})
	mustEdit(s, "undo_edit", "new/f", nil)
	if _, err := os.Lstat(s.dir + "/alias"); err != nil {
		t.Errorf("the link was removed: %v", err)
	}
	_, err = edit(s, "create", "f", nil)
	fails(t, err, pyerr.Target, "ValueError")
	_, err = edit(s, "create", ".", args{"file_text": "x"})
	fails(t, err, pyerr.Target, "IsADirectoryError")
}

func TestEditorStrReplace(t *testing.T) {
	t.Parallel()
	s := newSandbox(t)
	text := "one two\nthree two\n  indented\nlast"
	for _, c := range []struct {
		in   args
		want string
		says string // of the failure
	}{
		{args{"old_str": "three", "new_str": "3"}, strings.Replace(text, "three", "3", 1), ""},
		{args{"old_str": "one two\nthree"}, strings.Replace(text, "one two\nthree", "", 1), ""},
		{args{"old_str": "last", "new_str": "first\nlast\n"}, strings.Replace(text, "last", "first\nlast\n", 1), ""},
		{args{"old_str": "two", "new_str": "2"}, "", "old_str is not unique: it occurs 2 times, on lines 1, 2"},
		{args{"old_str": "two", "new_str": "2", "replace_mode": "ALL"}, strings.ReplaceAll(text, "two", "2"), ""},
		{args{"old_str": "two", "new_str": "2", "replace_mode": "FIRST"}, strings.Replace(text, "two", "2", 1), ""},
		{args{"old_str": "two", "new_str": "2", "replace_mode": "LAST"}, "one two\nthree 2\n  indented\nlast", ""},
		{args{"old_str": "four", "new_str": "4"}, "", "no replacement was made: old_str did not appear"},
		{args{"old_str": "    indented\n", "new_str": "4"}, "", "line 3: check indentation"},
		{args{"old_str": "last", "new_str": "last"}, "", "the same"},
		{args{"old_str": "", "new_str": "4"}, "", "old_str is missing"},
	} {
		s.put(map[string]string{"f": text})
		out, err := edit(s, "str_replace", "f", c.in)
		if c.says != "" {
			fails(t, err, pyerr.Target, "ValueError")
			if err != nil && !strings.Contains(err.Error(), c.says) || s.get("f") != text {
				t.Errorf("%v: got %v and %q, want an error that contains %q and the file as it was", c.in, err, s.get("f"), c.says)
			}
			continue
		}
		if err != nil || s.get("f") != c.want || *out.OldContent != text || *out.NewContent != c.want || !out.PrevExist {
			t.Errorf("%v: got %q %v, want file f with %q, old content %q, new content %q and prev_exist true",
				c.in, s.get("f"), err, c.want, text, c.want)
		}
	}
	s.put(map[string]string{"win": "a\r\nb\r\nc\r\n"})
	mustEdit(s, "str_replace", "win", args{"old_str": "a\nb\n", "new_str": "x\ny\nz\n"})
	mustEdit(s, "insert", "win", args{"insert_line": 1, "new_str": "n"})
	if got := s.get("win"); got != "x\r\nn\r\ny\r\nz\r\nc\r\n" {
		t.Errorf("Windows line ends: got %q, want \"x\\r\\nn\\r\\ny\\r\\nz\\r\\nc\\r\\n\"", got)
	}
	if out := mustEdit(s, "str_replace", "win", args{"old_str": "c", "new_str": "d"}); !strings.Contains(out.Output, "     5\td\n") {
		t.Errorf(`got %q, want output that contains "     5\td\n"`, out.Output)
	}
}

func TestEditorInsert(t *testing.T) {
	t.Parallel()
	s := newSandbox(t)
	for _, c := range []struct {
		text string
		line int
		new  string
		want string
	}{
		{"a\nb\n", 0, "x", "x\na\nb\n"},
		{"a\nb\n", 1, "x\n", "a\nx\nb\n"},
		{"a\nb\n", 2, "x", "a\nb\nx\n"},
		{"a\nb", 2, "x", "a\nb\nx"},
		{"a\nb", 2, "x\n", "a\nb\nx\n"},
		{"a\nb", 0, "x\ny", "x\ny\na\nb"},
		{"", 0, "x", "x"},
		{"\n", 1, "x", "\nx\n"},
	} {
		s.put(map[string]string{"f": c.text})
		mustEdit(s, "insert", "f", args{"insert_line": c.line, "new_str": c.new})
		if got := s.get("f"); got != c.want {
			t.Errorf("%q after line %d of %q: %q, want %q", c.new, c.line, c.text, got, c.want)
		}
	}
	s.put(map[string]string{"f": "a\nb\n"})
	for _, in := range []args{{"insert_line": 3, "new_str": "x"}, {"insert_line": -1, "new_str": "x"}, {"new_str": "x"}, {"insert_line": 1}} {
		_, err := edit(s, "insert", "f", in)
		fails(t, err, pyerr.Target, "ValueError")
	}
}

func TestEditorView(t *testing.T) {
	t.Parallel()
	s := newSandbox(t)
	s.put(map[string]string{"f": "one\ntwo\nthree\n", "dir/sub/deep/x": "", "dir/sub/y": "", "dir/.hidden": "",
		"empty": "", "t.csv": "a,b\n1,2\n"})
	if out := mustEdit(s, "view", "f", nil); !strings.HasSuffix(out.Output, "\n     1\tone\n     2\ttwo\n     3\tthree\n") {
		t.Errorf(`got %q, want output that ends with "\n     1\tone\n     2\ttwo\n     3\tthree\n"`, out.Output)
	}
	for _, r := range [][]int{{2, 3}, {2, -1}, {2, 99}} {
		if out := mustEdit(s, "view", "f", args{"view_range": r}); !strings.HasSuffix(out.Output, ":\n     2\ttwo\n     3\tthree\n") {
			t.Errorf(`%v: got %q, want output that ends with ":\n     2\ttwo\n     3\tthree\n"`, r, out.Output)
		}
	}
	for _, r := range [][]int{{0, 1}, {3, 2}, {1}, {9, 10}, {1, 2, 3}} {
		_, err := edit(s, "view", "f", args{"view_range": r})
		fails(t, err, pyerr.Target, "ValueError")
	}
	out := mustEdit(s, "view", "dir", nil)
	want := fmt.Sprintf("%[1]s/sub/\n%[1]s/sub/deep/\n%[1]s/sub/y\n[1 hidden]\n", s.dir+"/dir")
	if !strings.HasSuffix(out.Output, want) || strings.Contains(out.Output, "deep/x") {
		t.Errorf("%q, want %q", out.Output, want)
	}
	mustEdit(s, "view", "empty", nil)
	if out := mustEdit(s, "view", "f", args{"enable_metadata": true}); out.Metadata["file_size"] != int64(14) {
		t.Errorf("got %+v, want file_size 14", out.Metadata)
	}
	if out := mustEdit(s, "view", "t.csv", nil); !strings.Contains(out.Output, "     2\t1,2\n") {
		t.Errorf(`as text: got %q, want output that contains "     2\t1,2\n"`, out.Output)
	}
	if out := mustEdit(s, "view", "t.csv",
		args{"row_range": []int{2, 2}, "enable_metadata": true}); !strings.Contains(out.Output, "| a | b |\n") || out.Metadata["row_count"] != 2 {
		t.Errorf(`as a table: got %q %v, want output that contains "| a | b |\n" and row_count 2`, out.Output, out.Metadata)
	}
	s.put(map[string]string{"long": strings.Repeat(strings.Repeat("x", 99)+"\n", 20_000)})
	const maxView = 1 << 20
	if out := mustEdit(s, "view", "long", nil); len(out.Output) > 2*maxView ||
		!strings.Contains(out.Output[len(out.Output)-100:], "use view_range") {
		t.Errorf(`got %d bytes, want at most %d bytes and output that contains "use view_range"`, len(out.Output), 2*maxView)
	}
}

// maxUndo is the number of edits of one file that can be undone.
const maxUndo = 50

// model is the simplest implementation of the editor.
type model struct {
	content *string
	past    []*string
}

func (m *model) set(text string) {
	m.past = append(m.past, m.content)
	if len(m.past) > maxUndo {
		m.past = m.past[1:]
	}
	m.content = &text
}

func (m *model) undo() bool {
	if len(m.past) == 0 {
		return false
	}
	m.content = m.past[len(m.past)-1]
	m.past = m.past[:len(m.past)-1]
	return true
}

// Random edits with undo, and restarts in between, have the same effect as in the model.
func TestEditorEqualsModel(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 2))
	s := newSandbox(t)
	models := map[string]*model{"f": {}, "dir/g": {}, "größe\n": {}}
	names := []string{"f", "dir/g", "größe\n"}
	word := func() string {
		words := []string{"a", "b", "ab", "\n", "a\n", "", "x y", "\n\n", "é"}
		var b strings.Builder
		for range 1 + rnd.IntN(4) {
			b.WriteString(words[rnd.IntN(len(words))])
		}
		return b.String()
	}
	for step := range 1500 {
		name := names[rnd.IntN(len(names))]
		m := models[name]
		var did string
		var err error
		ok := true
		switch n := rnd.IntN(100); {
		case n < 12:
			text := word()
			did = fmt.Sprintf("create %q", text)
			_, err = edit(s, "create", name, args{"file_text": text})
			m.set(text)
		case n < 40:
			old, put := word(), word()
			modes := []string{"", "ALL", "FIRST", "LAST"}
			mode := modes[rnd.IntN(4)]
			did = fmt.Sprintf("str_replace %q by %q %s", old, put, mode)
			in := args{"old_str": old, "new_str": put}
			if mode != "" {
				in["replace_mode"] = mode
			}
			_, err = edit(s, "str_replace", name, in)
			ok = m.replace(old, put, mode)
		case n < 60:
			line, text := rnd.IntN(5), word()
			did = fmt.Sprintf("insert %q at %d", text, line)
			_, err = edit(s, "insert", name, args{"insert_line": line, "new_str": text})
			ok = m.insert(line, text)
		case n < 92:
			did = "undo"
			_, err = edit(s, "undo_edit", name, nil)
			ok = m.undo()
		case n < 95:
			did = "write without the editor"
			_, err = do[text.WriteOut](s, "file_write", args{"file": name, "content": "written"})
			m.content = new("written")
		default:
			did = "restart"
			s.restart(New(s.cfg))
		}
		if (err == nil) != ok {
			t.Fatalf("step %d, %s of %q: error %v, want %v", step, did, name, err, ok)
		}
		b, err := os.ReadFile(filepath.Join(s.dir, name))
		switch {
		case m.content == nil && err == nil:
			t.Fatalf("step %d, %s: %q should not exist", step, did, name)
		case m.content != nil && (err != nil || string(b) != *m.content):
			t.Fatalf("step %d, %s: %q is %q (%v), want %q", step, did, name, b, err, *m.content)
		}
	}
}

func (m *model) replace(old, put, mode string) bool {
	if m.content == nil || old == "" {
		return false
	}
	parts := strings.Split(*m.content, old)
	if n := len(parts) - 1; n == 0 || n > 1 && mode == "" || old == put {
		return false
	}
	switch mode {
	case "ALL":
		m.set(strings.Join(parts, put))
	case "LAST":
		m.set(strings.Join(parts[:len(parts)-1], old) + put + parts[len(parts)-1])
	default:
		m.set(parts[0] + put + strings.Join(parts[1:], old))
	}
	return true
}

func (m *model) insert(n int, text string) bool {
	if m.content == nil {
		return false
	}
	lines := strings.SplitAfter(*m.content, "\n")
	if lines[len(lines)-1] == "" {
		lines = lines[:len(lines)-1]
	}
	if n > len(lines) {
		return false
	}
	open := len(lines) > 0 && !strings.HasSuffix(lines[len(lines)-1], "\n")
	switch {
	case n == len(lines) && open:
		lines[n-1] += "\n"
	case len(lines) > 0 && !strings.HasSuffix(text, "\n"):
		text += "\n"
	}
	m.set(strings.Join(slices.Insert(lines, n, text), ""))
	return true
}

func TestHistoryIsBounded(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, func(c *Config) { c.MaxHistory = 10_000 })
	for i := range maxUndo + 20 {
		mustEdit(s, "create", "small", args{"file_text": fmt.Sprint(i)})
	}
	undone := 0
	for {
		if _, err := edit(s, "undo_edit", "small", nil); err != nil {
			break
		}
		undone++
	}
	if undone != maxUndo || s.get("small") != "19" {
		t.Errorf(`got %d undone, then %q, want %d undone and file small with "19"`, undone, s.get("small"), maxUndo)
	}
	big := strings.Repeat("x", 3000)
	for i := range 20 {
		mustEdit(s, "create", fmt.Sprint("f", i%5), args{"file_text": fmt.Sprint(i, big)})
	}
	var onDisk int64
	must(t, filepath.Walk(s.cfg.State, func(_ string, info os.FileInfo, err error) error {
		if err == nil && !info.IsDir() {
			onDisk += info.Size()
		}
		return err
	}))
	if onDisk > 10_000 {
		t.Errorf("got %d bytes on the disk, want at most 10000", onDisk)
	}
	mustEdit(s, "undo_edit", "f4", nil)
	if !strings.HasPrefix(s.get("f4"), "14x") {
		t.Errorf(`got %.10q, want file f4 that starts with "14x"`, s.get("f4"))
	}
}

// Clients of the public image match the words of this error.
func TestEditorReportsMissingFile(t *testing.T) {
	t.Parallel()
	s := newSandbox(t)
	for _, command := range []string{"view", "str_replace", "insert"} {
		_, err := edit(s, command, "none", args{"old_str": "a", "new_str": "b", "insert_line": 0})
		fails(t, err, pyerr.NotFound, "FileNotFoundError")
		if err == nil || !strings.Contains(err.Error(), "does not exist") {
			t.Errorf("%s: got %v, want does not exist", command, err)
		}
	}
}
