package disk

import (
	"archive/tar"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestPack: folders are stored below their targets, and so are hard links.
func TestPack(t *testing.T) {
	root, usr := t.TempDir(), t.TempDir()
	for _, step := range []error{
		os.WriteFile(filepath.Join(root, "top"), []byte("1"), 0o644),
		os.Mkdir(filepath.Join(usr, "bin"), 0o755),
		os.WriteFile(filepath.Join(usr, "bin", "a"), []byte("22"), 0o755),
		os.Link(filepath.Join(usr, "bin", "a"), filepath.Join(usr, "bin", "b")),
		os.Symlink("bin/a", filepath.Join(usr, "l")),
	} {
		if step != nil {
			t.Fatal(step)
		}
	}
	packed := pack(t.Context(), []part{{dir: root, target: "/"}, {dir: usr, target: "/usr"}})
	defer packed.Close()
	var got []string
	for in := tar.NewReader(packed); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, strings.TrimSuffix(h.Name+" "+h.Linkname, " "))
	}
	slices.Sort(got)
	for _, want := range []string{"top", "usr/bin/", "usr/l bin/a"} {
		if !slices.Contains(got, want) {
			t.Errorf("%q is not in %q", want, got)
		}
	}
	if !slices.Contains(got, "usr/bin/b usr/bin/a") && !slices.Contains(got, "usr/bin/a usr/bin/b") {
		t.Errorf("no hard link in %q", got)
	}
}
