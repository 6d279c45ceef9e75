package tree

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestCopy: a copied layer is the same to an overlay and to its users.
func TestCopy(t *testing.T) {
	dir := t.TempDir()
	from, to := filepath.Join(dir, "from"), filepath.Join(dir, "to")
	for _, d := range []string{"", "work", "root", "root/opaque", "root/closed"} {
		if err := os.Mkdir(filepath.Join(from, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	in := func(name string) string { return filepath.Join(from, "root", name) }
	for _, step := range []error{
		os.WriteFile(filepath.Join(from, "work", "rest"), nil, 0o600),
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
	if err := Copy(t.Context(), from, to, "work"); err != nil {
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
			t.Errorf("%s: got %+v, want %+v", name, b, a)
		}
	}
	if target, err := os.Readlink(filepath.Join(to, "root", "symlink")); target != "/etc/shadow" {
		t.Errorf("target of the copied link: got %q, %v, want /etc/shadow", target, err)
	}
	d, err := os.Open(filepath.Join(to, "root", "opaque"))
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if !isOpaque(d) {
		t.Error("the copy of an opaque folder is not opaque")
	}
	if _, err := os.Lstat(filepath.Join(to, "work")); err == nil {
		t.Error("the skipped folder was copied")
	}
	if err := os.Chmod(in("closed"), 0o700); err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if Copy(ended, from, filepath.Join(dir, "never"), "work") == nil {
		t.Error("a copy whose context has ended succeeded")
	}
}
