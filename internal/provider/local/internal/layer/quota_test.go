package layer

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// openQuota opens a store whose filesystem enforces limits.
func openQuota(t *testing.T) *Store {
	t.Helper()
	testenv.NeedRoot(t)
	s, err := Open(Config{Dir: t.TempDir(), ImageSize: 2 << 30})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	if ok, why := s.HasQuota(); !ok {
		testenv.Lack(t, fmt.Sprint("no quotas here: ", why))
	}
	return s
}

// fill writes to a file until it cannot.
func fill(t *testing.T, f *os.File) (n int64, err error) {
	t.Helper()
	chunk := make([]byte, 256<<10)
	for i := range chunk {
		chunk[i] = byte(i)
	}
	for n < 1<<30 {
		w, err := f.Write(chunk)
		n += int64(w)
		if err == nil && n%(4<<20) == 0 {
			err = f.Sync()
		}
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// TestLimit: a layer cannot exceed its limit, and deleted files free space.
func TestLimit(t *testing.T) {
	s := openQuota(t)
	const limit = 32 << 20
	if err := errors.Join(s.Create("one"), s.SetLimit("one", "ann", limit), s.Create("two")); err != nil {
		t.Fatal(err)
	}
	open := func(name string) *os.File {
		t.Helper()
		f, err := os.Create(s.Path("one", name))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	// Deleted but open.
	f := open("deleted")
	if err := os.Remove(f.Name()); err != nil {
		t.Fatal(err)
	}
	if n, err := fill(t, f); !errors.Is(err, unix.EDQUOT) || n > limit+quotaSlack {
		t.Errorf("a deleted file: got %d bytes, %v, want at most %d and %v", n, err, limit+quotaSlack, unix.EDQUOT)
	}
	if used, ok := s.Used("one"); !ok || used < limit-limit/8 {
		t.Errorf("used: got %d, %v, want about %d", used, ok, limit)
	}
	more, err := os.Create(s.Path("one", "more"))
	if err == nil {
		_, err = fill(t, more)
		more.Close()
	}
	if !errors.Is(err, unix.EDQUOT) {
		t.Errorf("another file: got %v, want %v", err, unix.EDQUOT)
	}
	// The neighbour has room, and so has the layer after a deletion.
	if err := os.WriteFile(s.Path("two", "file"), make([]byte, 1<<20), 0o600); err != nil {
		t.Errorf("the neighbour: %v", err)
	}
	if err := errors.Join(f.Close(), os.RemoveAll(s.Path("one", "more")), unix.Syncfs(fd(t, s.dir))); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(s.Path("one", "again"), make([]byte, limit/2), 0o600); err != nil {
		t.Errorf("after a deletion: %v", err)
	}
	// Raised, there is room at once.
	if err := s.SetLimit("one", "ann", 2*limit); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(s.Path("one", "larger"), make([]byte, limit), 0o600); err != nil {
		t.Errorf("after the limit was raised: %v", err)
	}
	for _, l := range []string{"one", "two"} {
		if err := s.remove(l); err != nil {
			t.Error(err)
		}
	}
}

func fd(t *testing.T, dir string) int {
	t.Helper()
	d, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return int(d.Fd())
}

// TestLimitOfEmptyFiles: files without content are limited, too, and can be removed.
func TestLimitOfEmptyFiles(t *testing.T) {
	s := openQuota(t)
	if err := errors.Join(s.Create("many"), s.SetLimit("many", "ann", 1<<20)); err != nil {
		t.Fatal(err)
	}
	n := 0
	var err error
	for ; n < 200_000 && err == nil; n++ {
		err = unix.Mknod(s.Path("many", fmt.Sprint(n)), unix.S_IFREG|0o600, 0)
	}
	if !errors.Is(err, unix.EDQUOT) {
		t.Errorf("after %d files: %v, want %v", n, err, unix.EDQUOT)
	}
	t.Logf("%d files", n)
	names, err := filepath.Glob(s.Path("many", "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if err := os.Remove(name); err != nil {
			t.Fatalf("remove at the limit: %v", err)
		}
	}
	if err := s.remove("many"); err != nil {
		t.Error(err)
	}
}

// TestLimitOfOwner: one owner cannot use the space of others, regardless of the limits of
// its layers.
func TestLimitOfOwner(t *testing.T) {
	s := openQuota(t)
	for _, l := range []struct{ name, owner string }{{"a1", "ann"}, {"a2", "ann"}, {"b", "bob"}} {
		if err := errors.Join(s.Create(l.name), s.SetLimit(l.name, l.owner, 100<<30)); err != nil {
			t.Fatal(err)
		}
	}
	// The whole is 2 GiB; allocating space is enough.
	allocate := func(layer, name string, size int64) error {
		f, err := os.Create(s.Path(layer, name))
		if err != nil {
			return err
		}
		defer f.Close()
		return unix.Fallocate(int(f.Fd()), 0, 0, size)
	}
	var err error
	for i := 0; i < 64 && err == nil; i++ {
		err = allocate([]string{"a1", "a2"}[i%2], fmt.Sprint(i), 64<<20)
	}
	if !errors.Is(err, unix.EDQUOT) {
		t.Errorf("an owner who fills all it has: got %v, want %v", err, unix.EDQUOT)
	}
	if err := allocate("b", "file", 64<<20); err != nil {
		t.Errorf("the other owner: %v", err)
	}
	for _, l := range []string{"a1", "a2", "b"} {
		if err := s.remove(l); err != nil {
			t.Error(err)
		}
	}
}
