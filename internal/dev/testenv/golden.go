package testenv

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the golden files under api/")

// Golden compares text with a file of api/, the checked-in public contract, so that
// changes show in the diff. With -update it writes the file.
func Golden(t testing.TB, root, name string, got []byte) {
	t.Helper()
	path := filepath.Join(root, "api", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("api/%s is out of date; run make gen and review the change: %s", name, firstDifference(got, want))
	}
}

// firstDifference shows where two texts begin to differ.
func firstDifference(got, want []byte) string {
	n := 0
	for n < min(len(got), len(want)) && got[n] == want[n] {
		n++
	}
	begin := bytes.LastIndexByte(got[:n], '\n') + 1
	part := func(b []byte) []byte { return b[begin:min(len(b), n+80)] }
	return fmt.Sprintf("line %d: got %q, want %q", bytes.Count(got[:n], []byte("\n"))+1, part(got), part(want))
}

// Indent formats JSON for a readable diff.
func Indent(t testing.TB, b []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	if err := json.Indent(&out, b, "", " "); err != nil {
		t.Fatal(err)
	}
	out.WriteByte('\n')
	return out.Bytes()
}
