package tree

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// nest creates folders within folders, deeper than a path can name.
func nest(t *testing.T, dir string, depth int) {
	t.Helper()
	at, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	for range depth {
		if err == nil {
			err = unix.Mkdirat(at, "folder", 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
		next, openErr := unix.Openat(at, "folder", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		unix.Close(at)
		at, err = next, openErr
	}
	unix.Close(at)
}

func TestRemove(t *testing.T) {
	dir := t.TempDir()
	outside := filepath.Join(dir, "outside")
	tree := filepath.Join(dir, "tree")
	if err := errors.Join(
		os.Mkdir(outside, 0o755), os.WriteFile(filepath.Join(outside, "file"), nil, 0o644),
		os.Mkdir(tree, 0o755), os.Symlink(outside, filepath.Join(tree, "link")), os.Symlink("/", filepath.Join(tree, "root")),
		os.Mkdir(filepath.Join(tree, "many"), 0o755), os.Mkdir(filepath.Join(tree, "closed"), 0o755),
		os.WriteFile(filepath.Join(tree, "closed", "file"), nil, 0o644), os.Chmod(filepath.Join(tree, "closed"), 0),
		unix.Mkfifo(filepath.Join(tree, "fifo"), 0o644),
	); err != nil {
		t.Fatal(err)
	}
	for i := range 3000 {
		if err := os.WriteFile(filepath.Join(tree, "many",
			string(rune('a'+i%26))+filepath.Base(t.Name())+string(rune('0'+i/26%10))+string(rune('0'+i/260))), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	nest(t, tree, 3000)
	for range 2 {
		if err := Remove(tree); err != nil {
			t.Fatal(err)
		}
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 1 {
		t.Errorf("left: got %v, %v, want only what is outside", left, err)
	}
	if _, err := os.Stat(filepath.Join(outside, "file")); err != nil {
		t.Errorf("outside: %v", err)
	}
	if err := Remove(filepath.Join(dir, "no", "such", "folder")); err != nil {
		t.Error(err)
	}
}

func TestMeasure(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := errors.Join(os.WriteFile(file, make([]byte, 1<<20), 0o644), os.Link(file, filepath.Join(dir, "again")),
		os.Symlink("/usr", filepath.Join(dir, "link"))); err != nil {
		t.Fatal(err)
	}
	s, err := Measure(dir, 0, 0)
	if err != nil || s.Files != 3 || s.Bytes < 1<<20 || s.Bytes > 1<<20+16<<10 || s.TooDeep {
		t.Errorf("got %+v, %v, want 3 files of 1 MiB", s, err)
	}
	if s, err := Measure(dir, 100, 0); err != nil || s.Bytes <= 100 {
		t.Errorf("with a bound of 100 bytes: got %+v, %v, want more than that", s, err)
	}
	if s, err := Measure(dir, 0, 1); err != nil || s.Files != 2 {
		t.Errorf("with a bound of 1 file: got %+v, %v, want an end after 2", s, err)
	}
	nest(t, dir, MaxDepth+10)
	if s, err := Measure(dir, 0, 0); err != nil || !s.TooDeep {
		t.Errorf("nested: got %+v, %v, want TooDeep", s, err)
	}
	if err := Remove(filepath.Join(dir, "folder")); err != nil {
		t.Error(err)
	}
}
