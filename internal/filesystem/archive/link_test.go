package archive

import (
	"archive/tar"
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// An untrusted archive writes nothing through a link, and no remaining link points outside.
func TestUntrustedArchive(t *testing.T) {
	t.Parallel()
	sym := func(name, target string) item { return item{name: name, link: target, kind: tar.TypeSymlink} }
	hard := func(name, target string) item { return item{name: name, link: target, kind: tar.TypeLink} }
	folder := func(name string) item { return item{name: name, kind: tar.TypeDir} }
	const file, dir = `-rwxr-xr-x "x"`, `drwxr-xr-x ""`
	for _, c := range []struct {
		name    string
		items   []item
		want    map[string]string // next to the old content
		skipped int
	}{
		{"links inside", []item{sym("a", "b"), {name: "b", body: "x"}, sym("d/up", "../b")},
			map[string]string{"a": "link b", "b": file, "d": dir, "d/up": "link ../b"}, 0},
		{"dangling link", []item{sym("a", "none")}, map[string]string{"a": "link none"}, 0},
		{"links outside", []item{sym("a", "/etc"), sym("b", "../outside"), sym("d/c", "../../outside")}, map[string]string{"d": dir}, 3},
		{"through a link of the archive", []item{folder("d"), sym("l", "d"), {name: "l/x", body: "x"}},
			map[string]string{"d": dir, "l": dir, "l/x": file}, 1},
		{"through a link that was there", []item{{name: "in/x", body: "x"}, folder("in/y"), sym("in/z", "x"), hard("in/h", "kept")},
			map[string]string{}, 4},
		{"up behind a link", []item{folder("p/q"), sym("p/q/s", "../.."), sym("p/q/t", "s/../outside/file")},
			map[string]string{"p": dir, "p/q": dir, "p/q/s": "link ../.."}, 1},
		{"behind a link that was there", []item{sym("a", "out/file"), sym("b", "a")}, map[string]string{"b": "link a"}, 1},
		{"hard link to a link", []item{hard("h", "out"), hard("g", "in/kept")}, map[string]string{}, 2},
		{"hard link to a file", []item{{name: "f", body: "x"}, hard("h", "f")}, map[string]string{"f": file, "h": file}, 0},
		{"over a link that was there", []item{{name: "out", body: "x"}}, map[string]string{"out": file}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			base := t.TempDir()
			dest, outside := filepath.Join(base, "dest"), filepath.Join(base, "outside")
			must(t, os.MkdirAll(filepath.Join(dest, "sub"), 0o755))
			must(t, os.Mkdir(outside, 0o755))
			must(t, os.WriteFile(filepath.Join(outside, "file"), []byte("safe"), 0o644))
			must(t, os.WriteFile(filepath.Join(dest, "kept"), []byte("kept"), 0o644))
			must(t, os.WriteFile(filepath.Join(dest, "sub/kept"), []byte("kept"), 0o644))
			must(t, os.Symlink(outside, filepath.Join(dest, "out")))
			must(t, os.Symlink("sub", filepath.Join(dest, "in")))
			want := snapshot(t, dest)
			for name, what := range c.want {
				want[name] = what
			}
			before := snapshot(t, outside)
			o := Options{Dest: dest, Limits: roomy, Overwrite: true, Untrusted: true}
			report, err := Unpack(t.Context(), bytes.NewReader(tarOf(t, c.items...)), o)
			if err != nil || len(report.Skipped) != c.skipped {
				t.Errorf("got %+v, %v, want %d skipped and no error", report, err, c.skipped)
			}
			if d := cmp.Diff(want, snapshot(t, dest)); d != "" {
				t.Error(d)
			}
			if d := cmp.Diff(before, snapshot(t, outside)); d != "" {
				t.Error(d)
			}
		})
	}
}
