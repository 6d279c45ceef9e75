package archive

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

var roomy = Limits{Entries: 1000, Bytes: 10 << 20, Packed: 10 << 20}

// snapshot describes a tree: kind, mode and content or target by path.
func snapshot(t testing.TB, root string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == root {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, path)
		what := ""
		switch {
		case info.Mode().IsRegular():
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			what = string(b)
		case info.Mode()&fs.ModeSymlink != 0:
			what, _ = os.Readlink(path)
			out[rel] = "link " + what
			return nil
		}
		out[rel] = fmt.Sprintf("%v %.40q", info.Mode(), what)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestRoundTrip(t *testing.T) {
	t.Parallel()
	for _, format := range []Format{TarGz, Zip} {
		t.Run(string(format), func(t *testing.T) {
			t.Parallel()
			src := filepath.Join(t.TempDir(), "pro ject")
			must(t, os.MkdirAll(filepath.Join(src, "deep/er/empty"), 0o755))
			must(t, os.WriteFile(filepath.Join(src, "run.sh"), []byte("#!/bin/sh\n"), 0o755))
			must(t, os.WriteFile(filepath.Join(src, "deep/größe\n.txt"), bytes.Repeat([]byte("x"), 100_000), 0o640))
			must(t, os.WriteFile(filepath.Join(src, strings.Repeat("n", 255)), []byte("long"), 0o644))
			must(t, os.WriteFile(filepath.Join(src, "zero"), nil, 0o644))
			must(t, os.Symlink("../run.sh", filepath.Join(src, "deep/link")))
			must(t, unix.Mkfifo(filepath.Join(src, "fifo"), 0o644))

			sum, err := Survey(t.Context(), src)
			if err != nil || sum.Skipped != 1 || sum.Bytes != 100_014 || sum.Entries != 9 {
				t.Errorf("survey: got %+v %v, want 1 skipped, 100014 bytes and 9 entries", sum, err)
			}
			var b bytes.Buffer
			must(t, Pack(t.Context(), &b, src, format))
			dest := t.TempDir()
			rep, err := Unpack(t.Context(), &b, Options{Dest: dest, Limits: roomy})
			if err != nil || rep.Format != string(format) || rep.Files != 4 || rep.Links != 1 || len(rep.Skipped) != 0 {
				t.Fatalf("got %+v %v, want format %q, 4 files, 1 link and none skipped", rep, err, string(format))
			}
			want := snapshot(t, src)
			delete(want, "fifo")
			if diff := cmp.Diff(want, snapshot(t, filepath.Join(dest, "pro ject"))); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// Archives of other programs can be unpacked.
func TestUnpackForeign(t *testing.T) {
	t.Parallel()
	testenv.Need(t, "tar")
	src := t.TempDir()
	must(t, os.WriteFile(filepath.Join(src, "a"), []byte("one"), 0o644))
	must(t, os.Link(filepath.Join(src, "a"), filepath.Join(src, "b")))
	for _, c := range []struct {
		flag, format, need string
	}{{"-c", "tar", "tar"}, {"-cz", "tar.gz", "gzip"}, {"-cj", "tar.bz2", "bzip2"}, {"--zstd -c", "tar.zst", "zstd"}} {
		t.Run(c.format, func(t *testing.T) {
			testenv.Need(t, c.need)
			args := append(strings.Fields(c.flag), "-C", src, ".")
			packed, err := exec.Command("tar", args...).Output()
			must(t, err)
			dest := t.TempDir()
			rep, err := Unpack(t.Context(), bytes.NewReader(packed), Options{Dest: dest, Limits: roomy})
			if err != nil || rep.Format != c.format {
				t.Fatalf("got %+v %v, want format %q", rep, err, c.format)
			}
			if b, err := os.ReadFile(filepath.Join(dest, "b")); err != nil || string(b) != "one" {
				t.Errorf(`got %q %v, want "one"`, b, err)
			}
		})
	}
}

type item struct {
	name, body, link string
	kind             byte
}

func tarOf(t testing.TB, items ...item) []byte {
	t.Helper()
	var b bytes.Buffer
	gz := gzip.NewWriter(&b)
	tw := tar.NewWriter(gz)
	for _, i := range items {
		if i.kind == 0 {
			i.kind = tar.TypeReg
		}
		must(t, tw.WriteHeader(&tar.Header{Name: i.name, Linkname: i.link, Typeflag: i.kind, Mode: 0o4755, Size: int64(len(i.body))}))
		_, err := io.WriteString(tw, i.body)
		must(t, err)
	}
	must(t, tw.Close())
	must(t, gz.Close())
	return b.Bytes()
}

func zipOf(t testing.TB, items ...item) []byte {
	t.Helper()
	var b bytes.Buffer
	zw := zip.NewWriter(&b)
	for _, i := range items {
		h := &zip.FileHeader{Name: i.name, Method: zip.Deflate}
		body := i.body
		h.SetMode(0o755)
		if i.kind == tar.TypeSymlink {
			h.SetMode(0o777 | fs.ModeSymlink)
			body = i.link
		}
		w, err := zw.CreateHeader(h)
		must(t, err)
		_, err = io.WriteString(w, body)
		must(t, err)
	}
	must(t, zw.Close())
	return b.Bytes()
}

// No archive can create or change anything outside the destination.
func TestNothingLeavesTheDestination(t *testing.T) {
	t.Parallel()
	sym := func(name, link string) item { return item{name: name, link: link, kind: tar.TypeSymlink} }
	for _, c := range []struct {
		name    string
		items   []item
		refused bool
	}{
		{"dots", []item{{name: "../evil", body: "x"}}, true},
		{"dots inside", []item{{name: "a/../../evil", body: "x"}}, true},
		{"absolute", []item{{name: "/tmp/evil-archive-test", body: "x"}}, true},
		{"dots folder", []item{{name: "../evil/", kind: tar.TypeDir}}, true},
		{"link out, then through it", []item{sym("l", "../outside"), {name: "l/evil", body: "x"}}, false},
		{"absolute link, then through it", []item{sym("l", "/tmp"), {name: "l/evil-archive-test", body: "x"}}, false},
		{"link to a link", []item{sym("a", "."), sym("a/b", ".."), {name: "b/evil", body: "x"}}, false},
		{"link behind a link", []item{{name: "d/", kind: tar.TypeDir}, sym("d/e", ".."),
			sym("d/e/c", "../../outside"), {name: "c/evil", body: "x"}}, false},
		{"link that was there", []item{{name: "old/evil", body: "x"}}, true},
		{"file over a link that was there", []item{{name: "oldfile", body: "x"}}, false},
	} {
		for format, pack := range map[string]func(testing.TB, ...item) []byte{"tar": tarOf, "zip": zipOf} {
			t.Run(c.name+" "+format, func(t *testing.T) {
				t.Parallel()
				base := t.TempDir()
				dest, outside := filepath.Join(base, "dest"), filepath.Join(base, "outside")
				must(t, os.Mkdir(dest, 0o755))
				must(t, os.Mkdir(outside, 0o755))
				must(t, os.WriteFile(filepath.Join(outside, "file"), []byte("safe"), 0o644))
				must(t, os.Symlink(outside, filepath.Join(dest, "old")))
				must(t, os.Symlink(filepath.Join(outside, "file"), filepath.Join(dest, "oldfile")))
				before := snapshot(t, outside)
				_, err := Unpack(t.Context(), bytes.NewReader(pack(t, c.items...)), Options{Dest: dest, Limits: roomy, Overwrite: true})
				if (err != nil) != c.refused || err != nil && !errors.Is(err, ErrEscape) {
					t.Errorf("error: got %v, want ErrEscape: %v", err, c.refused)
				}
				if diff := cmp.Diff(before, snapshot(t, outside)); diff != "" {
					t.Error(diff)
				}
				if names, _ := filepath.Glob(base + "/*"); len(names) != 2 {
					t.Errorf("next to the destination: got %q, want 2 names", names)
				}
				if _, err := os.Lstat("/tmp/evil-archive-test"); err == nil {
					t.Error("got a file in /tmp, want none")
				}
				for path, what := range snapshot(t, dest) {
					if strings.HasPrefix(what, "link") && !strings.HasPrefix(path, "old") {
						if real, err := filepath.EvalSymlinks(filepath.Join(dest, path)); err == nil && !strings.HasPrefix(real, dest) {
							t.Errorf("%s leads to %s", path, real)
						}
					}
				}
			})
		}
	}
}

func TestHardLinkStaysInside(t *testing.T) {
	t.Parallel()
	for _, target := range []string{"../outside", "/etc/passwd"} {
		_, err := Unpack(t.Context(), bytes.NewReader(tarOf(t, item{name: "h", link: target, kind: tar.TypeLink})),
			Options{Dest: t.TempDir(), Limits: roomy})
		if !errors.Is(err, ErrEscape) {
			t.Errorf("%s: got %v, want ErrEscape", target, err)
		}
	}
}

func TestLimits(t *testing.T) {
	t.Parallel()
	bomb := item{name: "zeros", body: strings.Repeat("\x00", 1<<20)}
	small := func(change func(*Limits)) Limits { l := roomy; change(&l); return l }
	for _, c := range []struct {
		name   string
		limits Limits
	}{
		{"bytes", small(func(l *Limits) { l.Bytes = 1000 })},
		{"entries", small(func(l *Limits) { l.Entries = 1 })},
		{"packed", small(func(l *Limits) { l.Packed = 100 })},
	} {
		for format, pack := range map[string]func(testing.TB, ...item) []byte{"tar": tarOf, "zip": zipOf} {
			t.Run(c.name+" "+format, func(t *testing.T) {
				dest := t.TempDir()
				_, err := Unpack(t.Context(), bytes.NewReader(pack(t, bomb, item{name: "second", body: "x"})), Options{Dest: dest, Limits: c.limits})
				if !errors.Is(err, ErrTooLarge) {
					t.Errorf("error: got %v, want ErrTooLarge", err)
				}
				if _, err := os.Stat(filepath.Join(dest, "zeros")); c.name == "bytes" && err == nil {
					t.Error("got a partial file, want none")
				}
			})
		}
	}
}

func TestUnpackRules(t *testing.T) {
	t.Parallel()
	dest := t.TempDir()
	packed := tarOf(t, item{name: "top/a", body: "new"}, item{name: "top/dev", kind: tar.TypeChar},
		item{name: "top/abs", link: "/etc", kind: tar.TypeSymlink})
	o := Options{Dest: dest, Limits: roomy, Strip: 1}
	rep, err := Unpack(t.Context(), bytes.NewReader(packed), o)
	if err != nil || rep.Files != 1 || len(rep.Skipped) != 2 {
		t.Fatalf("got %+v %v, want 1 file and 2 skipped", rep, err)
	}
	if info, err := os.Stat(dest + "/a"); err != nil || info.Mode() != 0o755 {
		t.Errorf("set-uid must be dropped: got %v %v, want mode 0755", info.Mode(), err)
	}
	if _, err := Unpack(t.Context(), bytes.NewReader(packed), o); !errors.Is(err, fs.ErrExist) {
		t.Errorf("second time: %v, want exists", err)
	}
	o.Overwrite = true
	if _, err := Unpack(t.Context(), bytes.NewReader(packed), o); err != nil {
		t.Errorf("overwrite: got %v, want no error", err)
	}
	for name, b := range map[string][]byte{"text": []byte("hello"), "empty": nil, "cut": packed[:len(packed)/2],
		"cut zip":        zipOf(t, item{name: "a", body: "x"})[:40],
		"gzip of no tar": gzipOf(t, strings.Repeat("hello ", 200))} {
		if _, err := Unpack(t.Context(), bytes.NewReader(b), Options{Dest: t.TempDir(), Limits: roomy}); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %v, want malformed", name, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Unpack(ctx, bytes.NewReader(packed), o); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: got %v, want context.Canceled", err)
	}
	if err := Pack(ctx, io.Discard, dest, TarGz); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: got %v, want context.Canceled", err)
	}
}

func gzipOf(t testing.TB, s string) []byte {
	var b bytes.Buffer
	gz := gzip.NewWriter(&b)
	_, err := io.WriteString(gz, s)
	must(t, err)
	must(t, gz.Close())
	return b.Bytes()
}

func FuzzUnpack(f *testing.F) {
	f.Add(tarOf(f, item{name: "a/b", body: "x"}, item{name: "l", link: "a", kind: tar.TypeSymlink}))
	f.Add(zipOf(f, item{name: "../b", body: "x"}, item{name: "l", link: "..", kind: tar.TypeSymlink}))
	f.Fuzz(func(t *testing.T, b []byte) {
		base := t.TempDir()
		dest := filepath.Join(base, "dest")
		must(t, os.Mkdir(dest, 0o755))
		_, _ = Unpack(t.Context(), bytes.NewReader(b),
			Options{Dest: dest, Limits: Limits{Entries: 20, Bytes: 1 << 20, Packed: 1 << 20}, Overwrite: true})
		if names, _ := os.ReadDir(base); len(names) != 1 {
			t.Errorf("next to the destination: got %v, want 1 name", names)
		}
	})
}
