package testenv

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the golden files under api/")

// Golden holds text against a file of api/, the checked-in public contract, so
// that a change of it shows in the diff. With -update it writes the file.
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
		t.Errorf("api/%s is not what the table says; look at the change, then run make gen", name)
	}
}

// Indent writes JSON so that a diff can be read.
func Indent(t testing.TB, b []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	if err := json.Indent(&out, b, "", " "); err != nil {
		t.Fatal(err)
	}
	out.WriteByte('\n')
	return out.Bytes()
}
