package image

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// reader makes an Export's layer of bytes.
func reader(raw []byte) func() (io.ReadCloser, error) {
	return func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(raw)), nil }
}

func TestSaveAndLoad(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	low, high := tarOf(t, file("low", "1"), dir("d")), tarOf(t, file("d/x", "2"), file(".wh.low", ""))
	e := Export{Layers: []func() (io.ReadCloser, error){reader(low), reader(high)}, Command: []string{"/bin/sh", "-c", "true"},
		Env: map[string]string{"A": "1", "B": "=2"}, Workdir: "/d", User: "1000", Tag: "team/saved:1"}
	out := filepath.Join(t.TempDir(), "saved.tar")
	f, err := os.Create(out)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.Save(t.Context(), f, e), f.Close()); err != nil {
		t.Fatal(err)
	}
	layoutDir := unfold(t, out)
	for name, c := range map[string]struct{ from, as, ref string }{
		"archive":  {"tar:" + out, "", "index.docker.io/team/saved:1"},
		"layout":   {"oci:" + layoutDir, "", "index.docker.io/team/saved:1"},
		"another":  {"tar:" + out, "registry.example/x:2", "registry.example/x:2"},
		"by path":  {"tar:" + out, "tar:" + out, "tar:" + out},
		"old save": {"tar:" + withoutIndex(t, layoutDir), "", "index.docker.io/team/saved:1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := openStore(t, func(c *Config) { c.LocalRefs = true })
			var last, total int64
			img, err := s.Load(t.Context(), c.from, c.as, func(done, of int64) { last, total = done, of })
			if err != nil {
				t.Fatal(err)
			}
			if img.Ref != c.ref || !slices.Equal(img.Command, e.Command) ||
				fmt.Sprint(img.Env) != fmt.Sprint(e.Env) || img.Workdir != e.Workdir || img.User != e.User {
				t.Errorf("got %+v, want %s like %+v", img, c.ref, e)
			}
			if last != total || total == 0 {
				t.Errorf("progress: got %d of %d at the end, want all", last, total)
			}
			want(t, look(t, img.Layers[0]), map[string]string{"d": "drwxr-xr-x", "d/x": "-rw-r--r-- 2", "low": "Dc---------"})
			want(t, look(t, img.Layers[1]), map[string]string{"d": "drwxr-xr-x", "low": "-rw-r--r-- 1"})
			again, err := s.Resolve(t.Context(), c.ref)
			if err != nil || again.Layers[0] != img.Layers[0] {
				t.Errorf("resolve: got %+v, %v, want %+v", again, err, img)
			}
		})
	}
}

// unfold unpacks an archive.
func unfold(t *testing.T, archive string) string {
	t.Helper()
	raw, err := os.ReadFile(archive)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if _, err := unpack(bytes.NewReader(raw), dir, roomy); err != nil {
		t.Fatal(err)
	}
	return dir
}

// withoutIndex packs a layout as docker save did once.
func withoutIndex(t *testing.T, dir string) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), "old.tar")
	f, err := os.Create(out)
	if err != nil {
		t.Fatal(err)
	}
	w := tar.NewWriter(f)
	for name, what := range look(t, dir) {
		if body, ok := strings.CutPrefix(what, "-rw-r--r-- "); ok && name != "index.json" {
			if err := errors.Join(w.WriteHeader(&tar.Header{Name: name, Size: int64(len(body)), Mode: 0o600, Typeflag: tar.TypeReg})); err != nil {
				t.Fatal(err)
			}
			io.WriteString(w, body)
		}
	}
	if err := errors.Join(w.Close(), f.Close()); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestLoadRefuses(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	junk := filepath.Join(t.TempDir(), "junk")
	if err := os.WriteFile(junk, bytes.Repeat([]byte("junk"), 1000), 0o600); err != nil {
		t.Fatal(err)
	}
	empty := filepath.Join(t.TempDir(), "empty.tar")
	if err := os.WriteFile(empty, tarOf(t), 0o600); err != nil {
		t.Fatal(err)
	}
	for from, want := range map[string]error{"tar:" + junk: ErrInvalid, "tar:" + empty: ErrInvalid,
		"tar:/none": ErrNotFound, "oci:/none": ErrNotFound,
		"oci:" + t.TempDir(): ErrInvalid, "oci:relative": ErrInvalid, "debian": ErrInvalid} {
		if _, err := s.Load(t.Context(), from, "x:1", nil); !errors.Is(err, want) {
			t.Errorf("%s: got %v, want %v", from, err, want)
		}
	}
}
