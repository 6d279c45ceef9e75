package grep

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// ripgrep returns the real engine, or skips the test.
func ripgrep(t testing.TB) Engine {
	t.Helper()
	testenv.Need(t, "rg")
	runner := proc.New(proc.Config{})
	t.Cleanup(func() { runner.Close() })
	program, ok := runner.Look("rg")
	if !ok {
		testenv.Lack(t, "rg is not in the PATH of child processes")
	}
	return Ripgrep{Runner: runner, Program: program}
}

// both runs a test with both engines, whose results must be the same.
func both(t *testing.T, test func(t *testing.T, e Engine)) {
	t.Run("ripgrep", func(t *testing.T) { t.Parallel(); test(t, ripgrep(t)) })
	t.Run("fallback", func(t *testing.T) { t.Parallel(); test(t, Fallback{}) })
}

// tree writes files from a map of names to contents.
func tree(t testing.TB, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, content := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// brief formats a result as one line per match: path:line:text, with context in brackets.
func brief(root string, r Result) []string {
	out := []string{}
	for _, m := range r.Matches {
		rel, _ := filepath.Rel(root, m.File)
		text := fmt.Sprintf("%s:%d:%s", rel, m.Line, strings.ReplaceAll(m.Text, "\n", "⏎"))
		if len(m.Before)+len(m.After) > 0 {
			text += fmt.Sprintf(" [%s|%s]", strings.Join(m.Before, ","), strings.Join(m.After, ","))
		}
		out = append(out, text)
	}
	return out
}

var sample = map[string]string{
	"a.txt":                "hello world\nfoo\nbar\nfoo\nfoo bar\n",
	"a/z.py":               "def foo():\n    return 'Foo'\n",
	"a/b/c.js":             "const foo = 1\r\nlet x\r\n",
	"a/.hidden.py":         "foo hidden\n",
	".config/settings.ini": "foo=config\n",
	"node_modules/m/i.js":  "foo module\n",
	"build/out.txt":        "foo built\n",
	"src/build/keep.txt":   "foo kept\n",
	"bin":                  "abc foo\x00def\nfoo\n",
	"latin1.txt":           "caf\xe9 foo\n",
	"utf16.txt":            "\xff\xfef\x00o\x00o\x00 \x001\x006\x00\n\x00",
	"bom.txt":              "\xef\xbb\xbffoo with mark\n",
	"uml.txt":              "größe\nÜber\nfoo größe_2\n",
	"nl/with\nbreak.txt":   "foo in odd name\n",
	"no-newline.txt":       "foo at the end",
	"open.md":              "wide\np\nq",
	".gitignore":           "# made\nbuild/\n*.log\n!important.log\n/nl\n",
	"important.log":        "foo important\n",
	"other.log":            "foo other\n",
	"large.txt":            "foo large\n" + strings.Repeat("x", 3000) + "\n",
	"empty.txt":            "",
}

// with returns a query for foo with a change.
func with(change func(*Query)) Query {
	q := Query{Pattern: "foo", Max: 500}
	change(&q)
	return q
}

// grepCases are queries of the sample, with the matches of ripgrep.
var grepCases = []struct {
	name string
	q    Query
	want []string
}{
	{"include", with(func(q *Query) { q.Include = []string{"*.py"} }), []string{"a/.hidden.py:1:foo hidden", "a/z.py:1:def foo():"}},
	{"include beats type", with(func(q *Query) {
		q.Include = []string{"*.js"}
		q.Types = []string{"py"}
	}), []string{"a/b/c.js:1:const foo = 1", "node_modules/m/i.js:1:foo module"}},
	{"type", with(func(q *Query) { q.Types = []string{"py"} }), []string{"a/.hidden.py:1:foo hidden", "a/z.py:1:def foo():"}},
	{"alias of a type", with(func(q *Query) { q.Types = []string{"python"} }), []string{"a/.hidden.py:1:foo hidden", "a/z.py:1:def foo():"}},
	{"include with braces", with(func(q *Query) {
		q.Include = []string{"*.{js,py}"}
		q.Exclude = []string{"node_modules"}
	}), []string{"a/.hidden.py:1:foo hidden", "a/b/c.js:1:const foo = 1", "a/z.py:1:def foo():"}},
	{"anchored include", with(func(q *Query) { q.Include = []string{"a/*.py"} }),
		[]string{"a/.hidden.py:1:foo hidden", "a/z.py:1:def foo():"}},
	{"double star", with(func(q *Query) { q.Include = []string{"src/**"} }), []string{"src/build/keep.txt:1:foo kept"}},
	{"a folder's name includes nothing", with(func(q *Query) { q.Include = []string{"src"} }), nil},
	{"exclude everywhere", with(func(q *Query) {
		q.Include = []string{"*.txt"}
		q.Exclude = []string{"build", "n*", "utf16*", "large*", "l*"}
	}),
		[]string{"a.txt:2:foo", "a.txt:4:foo", "a.txt:5:foo bar", "bom.txt:1:foo with mark", "uml.txt:3:foo größe_2"}},
	{"exclude at the root", with(func(q *Query) {
		q.Include = []string{"*t.txt", "keep.txt"}
		q.Exclude = []string{"/build"}
	}), []string{"src/build/keep.txt:1:foo kept"}},
	{"hidden", with(func(q *Query) {
		q.Hidden = true
		q.Exclude = []string{"*.txt", "*.js", "*.log"}
	}), []string{".config/settings.ini:1:foo=config", "a/.hidden.py:1:foo hidden", "a/z.py:1:def foo():"}},
	{"ignore files", with(func(q *Query) {
		q.Ignore = true
		q.Exclude = []string{"*.js", "*.py", "a.txt", "u*", "b*.txt", "l*.txt"}
	}), []string{"important.log:1:foo important", "no-newline.txt:1:foo at the end"}},
	{"ignore files off", with(func(q *Query) { q.Include = []string{"*.log"} }),
		[]string{"important.log:1:foo important", "other.log:1:foo other"}},
	{"shallow", with(func(q *Query) {
		q.Shallow = true
		q.Exclude = []string{"*.txt"}
	}), []string{"important.log:1:foo important", "other.log:1:foo other"}},
	{"context", with(func(q *Query) {
		q.Include = []string{"a.txt"}
		q.Before, q.After = 1, 2
	}), []string{"a.txt:2:foo [hello world|bar,foo]", "a.txt:4:foo [bar|foo bar]", "a.txt:5:foo bar [foo|]"}},
	{"ignore case", Query{Pattern: "FOO'", IgnoreCase: true, Max: 9}, []string{"a/z.py:2:    return 'Foo'"}},
	{"ignore case beyond ASCII", Query{Pattern: "über", IgnoreCase: true, Max: 9}, []string{"uml.txt:2:Über"}},
	{"fixed", Query{Pattern: "foo()", Fixed: true, Max: 9}, []string{"a/z.py:1:def foo():"}},
	{"classes are Unicode's", Query{Pattern: `^\w+$`, Include: []string{"uml.txt"}, Max: 9}, []string{"uml.txt:1:größe", "uml.txt:2:Über"}},
	{"boundaries are Unicode's", Query{Pattern: `r\b|\bgr`, Include: []string{"uml.txt"}, Max: 9},
		[]string{"uml.txt:1:größe", "uml.txt:2:Über", "uml.txt:3:foo größe_2"}},
	{"no boundary within a word", Query{Pattern: `\bb|gr\b`, Include: []string{"uml.txt"}, Max: 9}, nil},
	{"not UTF-8", Query{Pattern: "caf", Max: 9}, []string{"latin1.txt:1:caf\uFFFD foo"}},
	{"UTF-16", Query{Pattern: "foo 16", Max: 9}, []string{"utf16.txt:1:foo 16"}},
	{"byte order mark", Query{Pattern: "^foo with", Max: 9}, []string{"bom.txt:1:foo with mark"}},
	{"carriage return", Query{Pattern: `1\r$`, Max: 9}, []string{"a/b/c.js:1:const foo = 1"}},
	{"name with a line break", Query{Pattern: "odd", Max: 9}, []string{"nl/with\nbreak.txt:1:foo in odd name"}},
	{"size", with(func(q *Query) { q.Include = []string{"la*.txt"}; q.MaxFileSize = 1000 }), []string{"latin1.txt:1:caf\uFFFD foo"}},
	{"binary", with(func(q *Query) { q.Include = []string{"bin"} }), nil},
	{"multiline", Query{Pattern: `bar\nfoo`, Multiline: true, Max: 9}, []string{"a.txt:3:bar⏎foo"}},
	{"multiline keeps neighbours apart", Query{Pattern: `foo\n?`, Multiline: true, Include: []string{"a.txt"},
		Max: 9}, []string{"a.txt:2:foo", "a.txt:4:foo", "a.txt:5:foo bar"}},
	{"multiline neighbours at the end of a file without a line end", Query{Pattern: `^\w$`, Multiline: true,
		Include: []string{"open.md"}, Max: 9}, []string{"open.md:2:p", "open.md:3:q"}},
	{"multiline dot stops", Query{Pattern: `hello.*foo`, Multiline: true, Max: 9}, nil},
	{"multiline dot goes on", Query{Pattern: `(?s)hello.*bar$`, Multiline: true, Max: 9},
		[]string{"a.txt:1:hello world⏎foo⏎bar⏎foo⏎foo bar"}},
	{"multiline context", Query{Pattern: `bar\nfoo`, Multiline: true, Before: 1, After: 1, Max: 9},
		[]string{"a.txt:3:bar⏎foo [foo|foo bar]"}},
	{"page", with(func(q *Query) { q.Max = 2 }), []string{"a/b/c.js:1:const foo = 1", "a/z.py:1:def foo():"}},
	{"next page", with(func(q *Query) { q.Max, q.Offset = 3, 2 }), []string{"a.txt:2:foo", "a.txt:4:foo", "a.txt:5:foo bar"}},
	{"page within a file", with(func(q *Query) { q.Max, q.Offset = 2, 3 }), []string{"a.txt:4:foo", "a.txt:5:foo bar"}},
	{"beyond the last page", with(func(q *Query) { q.Offset = 400 }), nil},
}

func TestGrep(t *testing.T) {
	t.Parallel()
	root := tree(t, sample)
	both(t, func(t *testing.T, e Engine) {
		_, fallback := e.(Fallback)
		// The fallback knows only classes of ASCII, and handles UTF-16 as binary.
		unicodeOnly := map[string]bool{"classes are Unicode's": true, "boundaries are Unicode's": true,
			"no boundary within a word": true, "UTF-16": true}
		for _, c := range grepCases {
			t.Run(c.name, func(t *testing.T) {
				c.q.Root = root
				got, err := e.Grep(t.Context(), c.q)
				if fallback && (c.q.Multiline || c.q.Ignore || c.q.Types != nil) {
					if bad, ok := errors.AsType[*PatternError](err); !ok || !strings.Contains(bad.Msg, "install the Debian package ripgrep") {
						t.Errorf("got %v, want an error that names the package to install", err)
					}
					return
				}
				if fallback && unicodeOnly[c.name] {
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				if want := append([]string{}, c.want...); !cmp.Equal(brief(root, got), want) {
					t.Error(cmp.Diff(want, brief(root, got)))
				}
				if wantMore := strings.Contains(c.name, "page") && !strings.Contains(c.name, "beyond"); got.Truncated != wantMore {
					t.Errorf("truncated: got %v, want %v", got.Truncated, wantMore)
				}
			})
		}
	})
}

func TestGrepOneFile(t *testing.T) {
	t.Parallel()
	root := tree(t, sample)
	both(t, func(t *testing.T, e Engine) {
		for _, c := range []struct {
			file string
			want []string
		}{
			{"a/.hidden.py", []string{"a/.hidden.py:1:foo hidden"}},
			{"large.txt", []string{"large.txt:1:foo large"}}, // a file that is the root has no size limit
			{"bin", []string{}},
		} {
			q := Query{Root: filepath.Join(root, c.file), Pattern: "foo", Include: []string{"*.nothing"}, MaxFileSize: 10, Max: 9}
			got, err := e.Grep(t.Context(), q)
			if err != nil || !cmp.Equal(brief(root, got), c.want) {
				t.Errorf("%s: got %v, %v, want %v", c.file, brief(root, got), err, c.want)
			}
		}
	})
}

func TestGrepRefusals(t *testing.T) {
	t.Parallel()
	root := tree(t, map[string]string{"a": "x\n"})
	both(t, func(t *testing.T, e Engine) {
		for _, q := range []Query{
			{Pattern: "x("},
			{Pattern: `(?=x)`},
			{Pattern: `(x)\1`},
			{Pattern: `x\ny`},
			{Pattern: "x\ny", Fixed: true},
			{Pattern: "x", Types: []string{"no-such-type"}},
			{Pattern: "x", Include: []string{"["}},
			{Pattern: "x", Offset: maxOffset + 1},
		} {
			q.Root, q.Max = root, 10
			_, err := e.Grep(t.Context(), q)
			if _, ok := errors.AsType[*PatternError](err); !ok {
				t.Errorf("%q: got %v, want a PatternError", q.Pattern, err)
			}
		}
		if _, err := e.Grep(t.Context(), Query{Root: root + "/none", Pattern: "x", Max: 1}); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("missing root: got %v, want %v", err, os.ErrNotExist)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := e.Grep(ctx, Query{Root: root, Pattern: "x", Max: 1}); !errors.Is(err, context.Canceled) {
			t.Errorf("canceled: got %v, want %v", err, context.Canceled)
		}
	})
}

// A pattern that matches everywhere returns the first page by path, and long lines are truncated.
func TestGrepManyAndLong(t *testing.T) {
	t.Parallel()
	files := map[string]string{"long.txt": strings.Repeat("foo ", 100_000)}
	for i := range 300 {
		files[fmt.Sprintf("d%02d/f%03d", i%10, i)] = strings.Repeat("foo\n", 100)
	}
	root := tree(t, files)
	both(t, func(t *testing.T, e Engine) {
		got, err := e.Grep(t.Context(), Query{Root: root, Pattern: "foo", Max: 150, Offset: 3000})
		if err != nil {
			t.Fatal(err)
		}
		if len(got.Matches) != 150 || !got.Truncated || got.Matches[0].File != root+"/d01/f001" || got.Matches[149].File != root+"/d01/f011" {
			t.Errorf("got %d matches, from %+v to %+v, want 150 from d01/f001 to d01/f011", len(got.Matches),
				got.Matches[0], got.Matches[len(got.Matches)-1])
		}
		got, err = e.Grep(t.Context(), Query{Root: root, Pattern: "foo", Include: []string{"long.txt"}, Max: 5})
		if err != nil || len(got.Matches) != 1 || len(got.Matches[0].Text) > maxText+100 ||
			!strings.HasSuffix(got.Matches[0].Text, "[truncated]") {
			t.Errorf("long line: got %d matches, %v, want one that is truncated", len(got.Matches), err)
		}
	})
}

// Special files do not block or break a search.
func TestGrepSpecialFiles(t *testing.T) {
	t.Parallel()
	root := tree(t, map[string]string{"a.txt": "foo\n", "sub/b.txt": "foo\n"})
	if err := unix.Mkfifo(root+"/fifo", 0o644); err != nil {
		t.Fatal(err)
	}
	for link, to := range map[string]string{"loop": "loop", "up": "..", "gone": "nowhere", "zero": "/dev/zero"} {
		if err := os.Symlink(to, filepath.Join(root, link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(root, root+"-link"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(root + "-link") })
	both(t, func(t *testing.T, e Engine) {
		for _, at := range []string{root, root + "-link"} {
			got, err := e.Grep(t.Context(), Query{Root: at, Pattern: "foo", Max: 9})
			if want := []string{"a.txt:1:foo", "sub/b.txt:1:foo"}; err != nil || !cmp.Equal(brief(at, got), want) {
				t.Errorf("%s: got %v, %v, want %v", at, brief(at, got), err, want)
			}
		}
		got, err := e.Grep(t.Context(), Query{Root: "/proc/self/status", Pattern: "^Pid:", Max: 9})
		if err != nil || len(got.Matches) != 1 {
			t.Errorf("/proc: got %+v, %v, want one match", got, err)
		}
	})
}

func TestGrepTimeLimit(t *testing.T) {
	t.Parallel()
	files := map[string]string{}
	for i := range 200 {
		files[fmt.Sprint("f", i)] = "x\n"
	}
	root := tree(t, files)
	both(t, func(t *testing.T, e Engine) {
		got, err := e.Grep(t.Context(), Query{Root: root, Pattern: "y", Max: 9, Timeout: time.Nanosecond})
		if err != nil || !got.TimedOut || !got.Truncated {
			t.Errorf("got %+v, %v, want a timed out, truncated result", got, err)
		}
	})
}

// Both engines return the same results for random small trees and patterns.
func TestEnginesAgree(t *testing.T) {
	t.Parallel()
	rg := ripgrep(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	pick := func(from []string) string { return from[rnd.IntN(len(from))] }
	atoms := []string{"a", "b", " ", ".", `\w`, `\d`, `\s`, "[ab]", "[^a]", `\bb`, "x*", "(a|b)+", "A", `\W`, "[[:alpha:]]", "b?", "a{2}"}
	chars := []string{"a", "b", "aa", " ", "1", "x", "\n", "\n\n", "A", "_", "\t", "-"}
	globs := []string{"*.txt", "sub/*", "!*.py", "**/b.*", "sub/**", ".*", "sub"}
	for range 60 {
		files := map[string]string{}
		for _, name := range []string{"a.txt", "b.py", "sub/b.txt", "sub/.c.txt", ".dot/d.txt"} {
			var text strings.Builder
			for range rnd.IntN(30) {
				text.WriteString(pick(chars))
			}
			files[name] = text.String()
		}
		root := tree(t, files)
		q := Query{Root: root, IgnoreCase: rnd.IntN(3) == 0, Hidden: rnd.IntN(3) == 0,
			Before: rnd.IntN(3), After: rnd.IntN(3), Max: 1 + rnd.IntN(20), Offset: rnd.IntN(3)}
		for range 1 + rnd.IntN(3) {
			q.Pattern += pick(atoms)
		}
		q.Pattern = pick([]string{"", "", "^"}) + q.Pattern + pick([]string{"", "", "$"})
		if rnd.IntN(3) == 0 {
			q.Include = []string{pick(globs)}
		}
		if rnd.IntN(3) == 0 {
			q.Exclude = []string{strings.TrimPrefix(pick(globs), "!")}
		}
		want, err := rg.Grep(t.Context(), q)
		if err != nil {
			t.Fatalf("%+v: got %v, want no error", q, err)
		}
		got, err := (Fallback{}).Grep(t.Context(), q)
		if err != nil || !cmp.Equal(brief(root, got), brief(root, want)) || got.Truncated != want.Truncated {
			t.Errorf("%+v on %q: got %v, truncated %v and %v\n%s, want %q and truncated %v",
				q, files, err, want.Truncated, got.Truncated, cmp.Diff(brief(root, want), brief(root, got)), brief(root, want), want.Truncated)
		}
	}
}

// Ripgrep knows the types of all aliases.
func TestTypeAliases(t *testing.T) {
	t.Parallel()
	e, root := ripgrep(t), tree(t, map[string]string{"a": "x\n"})
	for alias := range typeAliases {
		if _, err := e.Grep(t.Context(), Query{Root: root, Pattern: "x", Types: []string{alias}, Max: 1}); err != nil {
			t.Errorf("type %q: got error %v, want none", alias, err)
		}
	}
}

func FuzzReport(f *testing.F) {
	f.Add([]byte(`{"type":"begin","data":{"path":{"text":"./a"}}}` + "\n" +
		`{"type":"match","data":{"lines":{"text":"a\nb\n"},"line_number":1,"submatches":[{"start":0,"end":3}]}}` + "\n" +
		`{"type":"end","data":{"binary_offset":null}}` + "\n"))
	f.Add([]byte(`{"type":"match"}` + "\n"))
	f.Add([]byte("{\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := &reportReader{q: Query{Multiline: true, Before: 1, After: 1, Max: 3}, dir: "/", to: &page{max: 3}}
		_ = r.readAll(io.MultiReader(bytes.NewReader(b[:len(b)/2]), bytes.NewReader(b[len(b)/2:])))
	})
}

func FuzzPattern(f *testing.F) {
	for _, p := range []string{`[\w-]`, `[^]a]`, `[[:alpha:]\d]`, `[a&&b]`, `\`, `(?P<n>x)\b`, `[`, `a{2,`} {
		f.Add(p, "text")
	}
	f.Fuzz(func(t *testing.T, pattern, text string) {
		s := &search{q: Query{Pattern: pattern, Include: []string{text}, Exclude: []string{pattern}}}
		if s.compile() == nil {
			s.re.MatchString(text)
			s.wants(text, false)
		}
	})
}
