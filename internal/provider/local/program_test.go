package local

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/cove-sandbox/cove/internal/testenv"
)

// TestProgramsInMemory: after a hub was killed the next one copies what is there now
// and removes the old; when one is closed all is gone.
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
		copies, err := openPrograms(state, []string{program})
		if err != nil || len(copies) != 1 {
			t.Fatal(copies, err)
		}
		return copies[0]
	}
	write("one")
	first := open()
	defer closePrograms(state)
	write("another")
	next := open()
	if text, err := os.ReadFile(next); err != nil || string(text) != "another" {
		t.Errorf("%q, %v", text, err)
	}
	if exists(first) {
		t.Error("the old program is still there")
	}
	if err := closePrograms(state); err != nil {
		t.Fatal(err)
	}
	if at, err := isMount(filepath.Join(state, programsName)); at || err != nil || exists(next) {
		t.Error("it is still mounted", err)
	}
}
