package local

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/testenv"
)

// TestStores: two filesystems made from one seed are two, and each is found
// again with what is in it, also while it is still mounted.
func TestStores(t *testing.T) {
	testenv.NeedRoot(t)
	open := func(dir string) *store {
		t.Helper()
		s, err := openStore(Config{Dir: dir, ImageSize: 2 << 30})
		if err != nil {
			t.Fatal(err)
		}
		if !s.subvol {
			testenv.Lack(t, fmt.Sprint("no btrfs here: ", s.why))
		}
		return s
	}
	a, b := t.TempDir(), t.TempDir()
	sa, sb := open(a), open(b)
	if err := sa.create("one"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(sa.path("one", "file"), []byte("a"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := sa.copy(context.Background(), "one", "two"); err != nil {
		t.Fatal(err)
	}
	if err := sb.create("other"); err != nil {
		t.Fatal(err)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(sa.dir, &fs); err != nil || int64(fs.Blocks)*fs.Bsize < 2<<30 {
		t.Errorf("it has %d bytes, %v", int64(fs.Blocks)*fs.Bsize, err)
	}
	if _, _, ok := sa.usageOf(); !ok {
		t.Error("what is used cannot be read")
	}
	// As after kill -9, when the mount is still there, or hidden with the
	// namespace it was in.
	sa = open(a)
	if err := unix.Unmount(sa.dir, unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	sa = open(a)
	for s, want := range map[*store][]string{sa: {"one", "two"}, sb: {"other"}} {
		if got, err := s.layers(); err != nil || !slices.Equal(got, want) {
			t.Errorf("layers are %q, %v, want %q", got, err, want)
		}
	}
	if err := os.WriteFile(sa.path("two", "file"), nil, 0o600); err == nil {
		t.Error("a copy can be written")
	}
	for _, layer := range []string{"one", "two", "none"} {
		if err := sa.remove(layer); err != nil {
			t.Error(err)
		}
	}
	for _, s := range []*store{sa, sb} {
		if err := s.close(); err != nil {
			t.Error(err)
		}
	}
	if onBtrfs(sa.dir) {
		t.Error("it is still mounted")
	}
	if err := sa.close(); err != nil {
		t.Errorf("closed twice: %v", err)
	}
}

// TestBrokenImage: an image with disks in it is not passed over for a lesser way.
func TestBrokenImage(t *testing.T) {
	testenv.NeedRoot(t)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, imageName), make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	if s, err := openStore(Config{Dir: dir}); err == nil {
		t.Errorf("opened %+v", s)
	}
}

// TestHalfMadeImage: what a killed hub did not finish is made anew.
func TestHalfMadeImage(t *testing.T) {
	testenv.NeedRoot(t)
	dir := t.TempDir()
	cfg := Config{Dir: dir, ImageSize: 1 << 30}
	s, err := openStore(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if !s.subvol {
		testenv.Lack(t, fmt.Sprint("no btrfs here: ", s.why))
	}
	image := filepath.Join(dir, imageName)
	if err := os.Rename(image, image+newMark); err != nil {
		t.Fatal(err)
	}
	if s, err = openStore(cfg); err != nil || s.image == "" || !exists(image) || exists(image+newMark) {
		t.Errorf("got %+v, %v", s, err)
	}
	if err := s.close(); err != nil {
		t.Error(err)
	}
}

// TestCopyTree: a copied layer is the same to an overlay and to its users.
func TestCopyTree(t *testing.T) {
	dir := t.TempDir()
	from, to := filepath.Join(dir, "from"), filepath.Join(dir, "to")
	for _, d := range []string{"", "work", "root", "root/opaque", "root/closed"} {
		if err := os.Mkdir(filepath.Join(from, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	in := func(name string) string { return filepath.Join(from, "root", name) }
	for _, step := range []error{
		os.WriteFile(filepath.Join(from, "work", "scrap"), nil, 0o600),
		os.WriteFile(in("file"), []byte("content"), 0o640),
		os.Link(in("file"), in("opaque/link")),
		os.Symlink("/etc/shadow", in("symlink")),
		unix.Mknod(in("gone"), unix.S_IFCHR, 0),
		unix.Mkfifo(in("fifo"), 0o622),
		unix.Setxattr(in("opaque"), "user.overlay.opaque", []byte("y"), 0),
		os.WriteFile(in("closed/secret"), []byte("s"), 0),
		os.Chmod(in("closed"), 0),
		os.Chmod(in("file"), 0o4755),
	} {
		if step != nil {
			t.Fatal(step)
		}
	}
	if err := copyTree(context.Background(), from, to); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"file", "opaque", "opaque/link", "symlink", "gone", "fifo", "closed"} {
		var a, b unix.Stat_t
		if err := unix.Lstat(in(name), &a); err != nil {
			t.Fatal(err)
		}
		if err := unix.Lstat(filepath.Join(to, "root", name), &b); err != nil {
			t.Error(err)
			continue
		}
		if a.Mode != b.Mode || a.Rdev != b.Rdev || a.Nlink != b.Nlink || a.Uid != b.Uid || a.Mtim != b.Mtim {
			t.Errorf("%s: %+v became %+v", name, a, b)
		}
	}
	if target, err := os.Readlink(filepath.Join(to, "root", "symlink")); target != "/etc/shadow" {
		t.Errorf("%q, %v", target, err)
	}
	d, err := os.Open(filepath.Join(to, "root", "opaque"))
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if !opaque(d) {
		t.Error("the opaque folder is not")
	}
	if _, err := os.Lstat(filepath.Join(to, "work")); err == nil {
		t.Error("the overlay's own work was copied")
	}
	if err := os.Chmod(in("closed"), 0o700); err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	if copyTree(ended, from, filepath.Join(dir, "never")) == nil {
		t.Error("copied for nobody")
	}
}

// TestPack: folders come under their targets, also the other names of a file.
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
