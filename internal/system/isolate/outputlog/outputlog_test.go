package outputlog

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// write sends lines through a writer with files of at most max bytes, and returns their paths.
func write(t *testing.T, max int64, lines int) (paths [2]string) {
	t.Helper()
	var files [2]*os.File
	for i := range files {
		paths[i] = filepath.Join(t.TempDir(), fmt.Sprint(i))
		f, err := os.Create(paths[i])
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		files[i] = f
	}
	w, pipe, err := New(files, max)
	if err != nil {
		t.Fatal(err)
	}
	go w.Run()
	for i := range lines {
		fmt.Fprintf(pipe, "line %d\n", i)
	}
	pipe.Close()
	w.Drain()
	w.from.Close()
	return paths
}

func TestRead(t *testing.T) {
	t.Parallel()
	if got, err := Read(write(t, 1<<20, 3), 100); err != nil || string(got) != "line 0\nline 1\nline 2\n" {
		t.Errorf("got %q, %v, want all lines", got, err)
	}
	if got, err := Read(write(t, 1<<20, 3), 7); err != nil || string(got) != "line 2\n" {
		t.Errorf("got %q, %v, want the last line", got, err)
	}
	if got, err := Read(write(t, 1<<20, 0), 100); err != nil || len(got) > 0 {
		t.Errorf("got %q, %v, want nothing", got, err)
	}
	if _, err := Read([2]string{"/nonexistent/0", "/nonexistent/1"}, 100); err == nil {
		t.Error("missing files: got no error")
	}
}

// TestTurns: the end of the output is kept, in order, and the files are bounded.
func TestTurns(t *testing.T) {
	t.Parallel()
	const max = 64 << 10
	paths := write(t, max, 50_000)
	for _, path := range paths {
		if info, err := os.Stat(path); err != nil || info.Size() > max+headSize {
			t.Errorf("got %v bytes, %v, want at most %d", info.Size(), err, max+headSize)
		}
	}
	got, err := Read(paths, max)
	if err != nil || !strings.HasSuffix(string(got), "line 49998\nline 49999\n") {
		t.Errorf("got the end %q, %v, want the last lines", tail(got), err)
	}
	lines := strings.Split(strings.TrimSpace(string(got)), "\n")
	for i, line := range lines[1:] { // the first may be truncated
		if want := fmt.Sprintf("line %d", 50_000-len(lines)+1+i); line != want {
			t.Fatalf("got %q, want %q", line, want)
		}
	}
}

func tail(b []byte) []byte { return b[max(0, len(b)-20):] }
