package runner

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/provider/local/internal/tree"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// TestLinkedFolder: a folder that sandboxes see may be a link, such as a Python environment in a cache.
func TestLinkedFolder(t *testing.T) {
	testenv.NeedRoot(t)
	state, folder := t.TempDir(), t.TempDir()
	link, program := filepath.Join(t.TempDir(), "link"), filepath.Join(t.TempDir(), "init")
	if err := errors.Join(os.Symlink(folder, link), os.WriteFile(program, []byte("init"), 0o755)); err != nil {
		t.Fatal(err)
	}
	p := loadPrograms(Config{Dir: state, Init: []string{program}, Binds: []Bind{{Source: link, Target: "/run/venv"}},
		Log: slog.New(slog.DiscardHandler)})
	defer unmountPrograms(state)
	if p.binds[0].Source != folder {
		t.Errorf("got %q, want %q", p.binds[0].Source, folder)
	}
}

// TestProgramsInMemory: after a hub was killed the next one copies the programs again
// and removes the old copies; closing removes everything.
func TestProgramsInMemory(t *testing.T) {
	testenv.NeedRoot(t)
	state, program := t.TempDir(), filepath.Join(t.TempDir(), "p")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(program, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	open := func() string {
		t.Helper()
		copies, err := mountPrograms(state, []string{program})
		if err != nil || len(copies) != 1 {
			t.Fatalf("copies: got %q, %v, want one", copies, err)
		}
		return copies[0]
	}
	write("one")
	first := open()
	defer unmountPrograms(state)
	write("another")
	next := open()
	if text, err := os.ReadFile(next); err != nil || string(text) != "another" {
		t.Errorf("the copy holds %q, %v, want \"another\"", text, err)
	}
	if tree.Exists(first) {
		t.Error("the old copy still exists")
	}
	if err := unmountPrograms(state); err != nil {
		t.Fatal(err)
	}
	if at, err := isMount(filepath.Join(state, programsName)); at || err != nil || tree.Exists(next) {
		t.Errorf("after unmounting: mounted: %v, error: %v", at, err)
	}
}
