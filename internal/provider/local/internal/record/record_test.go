package record

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// TestSave: the last save counts, and nothing but the record is left.
func TestSave(t *testing.T) {
	dir := t.TempDir()
	var got string
	if err := Load(dir, "a.json", &got); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("load before the first save: got %v, want %v", err, fs.ErrNotExist)
	}
	for _, step := range []error{Save(dir, "a.json", "one"), SaveDurable(dir, "a.json", "two"),
		Save(dir, "a.json", "three"), Sync(dir, "a.json")} {
		if step != nil {
			t.Fatal(step)
		}
	}
	if err := Load(dir, "a.json", &got); err != nil || got != "three" {
		t.Errorf("got %q, %v, want three", got, err)
	}
	if left, err := filepath.Glob(filepath.Join(dir, "*")); err != nil || len(left) != 1 {
		t.Errorf("files: got %q, %v, want the record alone", left, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "a.json"), []byte(`"thr`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Load(dir, "a.json", &got); err == nil {
		t.Error("half a record was read")
	}
}
