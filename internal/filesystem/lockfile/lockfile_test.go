package lockfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func TestOpen(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "lock")
	first, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := first.Stat(); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("got mode %v, %v, want 0600", info.Mode(), err)
	}
	if second, err := Open(path); !errors.Is(err, ErrLocked) || second != nil {
		t.Errorf("locked twice: got %v, %v, want %v", second, err, ErrLocked)
	}
	if err := TryLock(first); err != nil {
		t.Errorf("locked again by its holder: got %v, want no error", err)
	}
	first.Close()
	third, err := Open(path)
	if err != nil {
		t.Fatalf("after the lock was released: got %v, want no error", err)
	}
	third.Close()
}

func TestOpenFails(t *testing.T) {
	t.Parallel()
	if _, err := Open(filepath.Join(t.TempDir(), "none", "lock")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("in a missing folder: got %v, want %v", err, fs.ErrNotExist)
	}
	closed, err := os.Create(filepath.Join(t.TempDir(), "closed"))
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	if err := TryLock(closed); err == nil || errors.Is(err, ErrLocked) {
		t.Errorf("a closed file: got %v, want another error than %v", err, ErrLocked)
	}
}
