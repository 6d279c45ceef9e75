package layer

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/provider/local/internal/tree"
)

// TestStores: two filesystems made from one seed are two, and each is found
// again with what is in it, also while it is still mounted.
func TestStores(t *testing.T) {
	testenv.NeedRoot(t)
	open := func(dir string) *Store {
		t.Helper()
		s, err := Open(Config{Dir: dir, ImageSize: 2 << 30})
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
	if err := sa.Create("one"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(sa.Path("one", "file"), []byte("a"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := sa.Copy(t.Context(), "one", "two"); err != nil {
		t.Fatal(err)
	}
	if err := sb.Create("other"); err != nil {
		t.Fatal(err)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(sa.dir, &fs); err != nil || int64(fs.Blocks)*fs.Bsize < 2<<30 {
		t.Errorf("size of the filesystem: got %d bytes, %v, want 2 GiB", int64(fs.Blocks)*fs.Bsize, err)
	}
	if _, _, ok := sa.btrfsUsage(); !ok {
		t.Error("the usage cannot be read")
	}
	// As after kill -9, when the mount is still there, or hidden with the
	// namespace it was in.
	sa = open(a)
	if err := unix.Unmount(sa.dir, unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	sa = open(a)
	for s, want := range map[*Store][]string{sa: {"one", "two"}, sb: {"other"}} {
		if got, err := s.names(); err != nil || !slices.Equal(got, want) {
			t.Errorf("layers are %q, %v, want %q", got, err, want)
		}
	}
	if err := os.WriteFile(sa.Path("two", "file"), nil, 0o600); err == nil {
		t.Error("a copy can be written")
	}
	for _, layer := range []string{"one", "two", "none"} {
		if err := sa.remove(layer); err != nil {
			t.Error(err)
		}
	}
	for _, s := range []*Store{sa, sb} {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	if isBtrfs(sa.dir) {
		t.Error("it is still mounted")
	}
	if err := sa.Close(); err != nil {
		t.Errorf("closed twice: %v", err)
	}
}

// TestBrokenImage: there is no fallback to plain folders from an image with disks.
func TestBrokenImage(t *testing.T) {
	testenv.NeedRoot(t)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, imageName), make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	if s, err := Open(Config{Dir: dir}); err == nil {
		t.Errorf("a damaged image: got %+v, want an error", s)
	}
}

// TestUnfinishedImage: an image that a killed hub did not finish is created again.
func TestUnfinishedImage(t *testing.T) {
	testenv.NeedRoot(t)
	dir := t.TempDir()
	cfg := Config{Dir: dir, ImageSize: 1 << 30}
	s, err := Open(cfg)
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
	if s, err = Open(cfg); err != nil || s.image == "" || !tree.Exists(image) || tree.Exists(image+newMark) {
		t.Errorf("got %+v, %v, want a new image instead of the unfinished one", s, err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// TestRemoveReadOnly: nothing that was planted in a layer keeps it from being removed.
func TestRemoveReadOnly(t *testing.T) {
	s := openQuota(t)
	plant := func(dir string) {
		t.Helper()
		if err := errors.Join(os.MkdirAll(filepath.Join(dir, "a/b"), 0o755), btrfsNamed(filepath.Join(dir, "a"), btrfsSubvolCreate, "sub"),
			os.WriteFile(filepath.Join(dir, "a/sub/file"), []byte("x"), 0o600), btrfsNamed(filepath.Join(dir, "a/sub"), btrfsSubvolCreate, "inner"),
			snapshotSubvol(filepath.Join(dir, "a/sub"), filepath.Join(dir, "a"), "frozen"),
			os.WriteFile(filepath.Join(dir, "a/b/locked"), nil, 0o600)); err != nil {
			t.Fatal(err)
		}
		f, err := os.Open(filepath.Join(dir, "a/b/locked"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		const immutable = 0x10
		if err := unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, immutable); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Create("layer"); err != nil {
		t.Fatal(err)
	}
	plant(s.Path("layer"))
	plant(filepath.Join(s.Sandboxes(), "box"))
	for what, err := range map[string]error{"layer": s.remove("layer"), "folder": tree.Remove(filepath.Join(s.Sandboxes(), "box"))} {
		if err != nil {
			t.Errorf("remove a %s: %v", what, err)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(s.dir, "*/*")); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}
