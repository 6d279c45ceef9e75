package host

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// A log does not exceed the limits of its files, keeps the newest lines, and does not split lines.
func TestLogRotation(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "cove.log")
	const limit, keep, lines = 1000, 2, 500
	log, err := OpenLogFile(path, limit, keep)
	if err != nil {
		t.Fatal(err)
	}
	var wait sync.WaitGroup
	for w := range 4 {
		wait.Go(func() {
			for i := range lines {
				fmt.Fprintf(log, "writer %d line %d\n", w, i)
			}
		})
	}
	wait.Wait()
	fmt.Fprintln(log, "the last line")
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(path + "*")
	if err != nil || len(files) != 1+keep {
		t.Fatalf("got files %v and error %v, want %d", files, err, 1+keep)
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(f); err != nil || info.Mode().Perm() != 0o600 || len(b) > limit || len(b) == 0 {
			t.Errorf("%s: got %d bytes, %v and error %v, want at most %d and mode 0600", f, len(b), info.Mode(), err, limit)
		}
		for line := range strings.Lines(string(b)) {
			if !strings.HasPrefix(line, "writer ") && line != "the last line\n" || !strings.HasSuffix(line, "\n") {
				t.Errorf("%s: got line %q, want a complete line", f, line)
			}
		}
	}
	if b, _ := os.ReadFile(path); !strings.HasSuffix(string(b), "the last line\n") {
		t.Errorf("got %q, want the last line at the end", b)
	}
	// A restarted hub appends.
	again, err := OpenLogFile(path, limit, keep)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(again, "restarted")
	if err := again.Close(); err != nil {
		t.Fatal(err)
	}
	if b, _ := os.ReadFile(path); !strings.HasSuffix(string(b), "restarted\n") {
		t.Errorf("got %q, want both runs", b)
	}
	if _, err := OpenLogFile(t.TempDir(), limit, keep); err == nil {
		t.Error("a folder as log: got no error, want one")
	}
}
