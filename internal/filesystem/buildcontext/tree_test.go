package buildcontext

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// newTree returns the folder of a build with an ignore file. A name with -> is a link.
func newTree(t *testing.T, ignore string, names ...string) *Tree {
	t.Helper()
	dir := t.TempDir()
	for _, name := range names {
		name, target, link := strings.Cut(name, "->")
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		switch {
		case link:
			err = os.Symlink(target, path)
		case strings.HasSuffix(name, "/"):
			err = os.MkdirAll(path, 0o755)
		default:
			err = os.WriteFile(path, []byte("text of "+name), 0o640)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	patterns, err := ParsePatterns([]byte(ignore))
	if err != nil {
		t.Fatal(err)
	}
	tree, err := Open(dir, patterns, Limits{Entries: 20, Bytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tree.Close() })
	return tree
}

// names returns the names of an archive, and checks its digest.
func names(t *testing.T, f *Files) (list []string) {
	t.Helper()
	var b bytes.Buffer
	if err := f.WriteTar(t.Context(), &b); err != nil {
		t.Fatal(err)
	}
	digest, size, err := Digest(bytes.NewReader(b.Bytes()), limits)
	if err != nil || digest != f.Digest || size != f.Size {
		t.Errorf("the archive has the digest %s and %d bytes, %v; want %s and %d", digest, size, err, f.Digest, f.Size)
	}
	for r := tar.NewReader(&b); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return list
		}
		if err != nil {
			t.Fatal(err)
		}
		name := h.Name
		if h.Typeflag == tar.TypeSymlink {
			name += "->" + h.Linkname
		}
		list = append(list, name)
	}
}

func TestSelect(t *testing.T) {
	t.Parallel()
	all := []string{"a.txt", "b.txt", "src/x.go", "src/sub/y.go", "src/l->x.go", "node_modules/m/i.js", "in->src", "f->a.txt", ".git/HEAD"}
	for _, c := range []struct {
		ignore string
		sel    Selection
		want   []string
	}{
		{"", Selection{Sources: []string{"a.txt", "src"}}, []string{"a.txt", "src/", "src/l->x.go", "src/sub/", "src/sub/y.go", "src/x.go"}},
		{"node_modules\n.git\n", Selection{Sources: []string{"/"}},
			[]string{"a.txt", "b.txt", "f->a.txt", "in->src", "src/", "src/l->x.go", "src/sub/", "src/sub/y.go", "src/x.go"}},
		{"*\n!src\nsrc/sub", Selection{Sources: []string{"/"}}, []string{"src/", "src/l->x.go", "src/x.go"}},
		{"**/*.go\n!src/sub/y.go", Selection{Sources: []string{"src"}}, []string{"src/", "src/l->x.go", "src/sub/", "src/sub/y.go"}},
		{"", Selection{Sources: []string{"*.txt", "no*"}}, []string{"a.txt", "b.txt", "node_modules/", "node_modules/m/",
			"node_modules/m/i.js"}},
		{"", Selection{Sources: []string{"f"}}, []string{"f"}},
		{"", Selection{Sources: []string{"in"}}, []string{"in/", "in/l->x.go", "in/sub/", "in/sub/y.go", "in/x.go"}},
		{"", Selection{Sources: []string{"src"}, Exclude: []string{"**/*.go"}}, []string{"src/", "src/l->x.go", "src/sub/"}},
		{"", Selection{Sources: []string{"a.txt", "zz*"}}, []string{"a.txt"}},
		{"*", Selection{Inline: []Inline{{"x", "text"}}}, []string{"x"}},
	} {
		f, err := newTree(t, c.ignore, all...).Select(t.Context(), c.sel)
		if err != nil {
			t.Errorf("%+v: %v", c.sel, err)
			continue
		}
		if d := cmp.Diff(c.want, names(t, f)); d != "" {
			t.Errorf("%+v without %q: %s", c.sel, c.ignore, d)
		}
		if len(f.Sources) == 2 && f.Sources[1] == "zz*" {
			t.Error("a pattern that matches nothing stays")
		}
	}
}

// TestHostileSelect: nothing outside of the folder is read, and the limits hold.
func TestHostileSelect(t *testing.T) {
	t.Parallel()
	outside := t.TempDir()
	if err := os.WriteFile(filepath.Join(outside, "secret"), []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	tree := newTree(t, "hidden", "a", "hidden", "file->"+outside+"/secret", "dir->"+outside, "up->../x", "loop->loop",
		"src/out->"+outside, "src/b")
	for _, source := range []string{"file", "dir", "dir/secret", "up", "loop", "../x", "hidden", "no"} {
		if f, err := tree.Select(t.Context(), Selection{Sources: []string{source}}); err == nil {
			t.Errorf("%s: got %v", source, names(t, f))
		}
	}
	f, err := tree.Select(t.Context(), Selection{Sources: []string{"src"}}) // the link itself is a link
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]string{"src/", "src/b", "src/out->" + outside}, names(t, f)); d != "" {
		t.Error(d)
	}
	var many []string
	for i := range 30 {
		many = append(many, "d/"+strings.Repeat("x", i+1))
	}
	if _, err := newTree(t, "", many...).Select(t.Context(), Selection{Sources: []string{"/"}}); !errors.Is(err, ErrTooLarge) {
		t.Errorf("got %v for many files", err)
	}
	large := newTree(t, "", "a")
	if err := os.Truncate(filepath.Join(large.root.Name(), "a"), 2<<20); err != nil {
		t.Fatal(err)
	}
	if _, err := large.Select(t.Context(), Selection{Sources: []string{"a"}}); !errors.Is(err, ErrTooLarge) {
		t.Errorf("got %v for a large file", err)
	}
	if _, err := ParsePatterns([]byte("[a")); err == nil {
		t.Error("an invalid pattern was accepted")
	}
}

func TestPatterns(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ text, match, other string }{
		{"# comment\n\n  a  ", "a a/b a/b/c", "b ab x/a"}, {"/a/", "a a/b", "b"}, {"*/t*", "x/t x/tmp/y", "t x/y/t"}, {"**/t",
			"t x/t x/y/t/z", "xt"},
		{"a?", "ab ac/x", "a abc"}, {"a[0-9]", "a1", "ab"}, {"*.md\n!README*.md\nREADME-x.md", "a.md README-x.md", "README.md x/a.md"},
		{"a/**", "a/b a/b/c", "b"}, {"a\\*", "a*", "ab"}, {"./x/../a", "a", "x"}, {"../a", "a", ""}, {"a.b", "a.b", "axb"}, {"!a", "", "a"},
	} {
		p, err := ParsePatterns([]byte(c.text))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range strings.Fields(c.match) {
			if !p.Match(name) {
				t.Errorf("%q does not match %s", c.text, name)
			}
		}
		for _, name := range strings.Fields(c.other) {
			if p.Match(name) {
				t.Errorf("%q matches %s", c.text, name)
			}
		}
	}
}

func FuzzPatterns(f *testing.F) {
	f.Add("a/**\n!b[a-z]\\x", "a/b")
	f.Fuzz(func(_ *testing.T, text, name string) {
		if p, err := ParsePatterns([]byte(text)); err == nil {
			p.Match(name)
		}
	})
}
