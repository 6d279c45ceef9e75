package contract

import (
	"os"
	"path/filepath"
	"testing"
)

// TestClientsOfTheReferenceWork reads the checked-in document, which the golden test compares
// with the table of operations.
func TestClientsOfTheReferenceWork(t *testing.T) {
	t.Parallel()
	ref, ours := read(t, "testdata", "aio-openapi.json"), read(t, "..", "..", "api", "aio-openapi.json")
	routes, err := Routes(ref)
	if err != nil {
		t.Fatal(err)
	}
	found, err := Compare(ref, ours)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range found {
		if f.Warning {
			t.Log(f)
		} else {
			t.Error(f)
		}
	}
	t.Logf("%d operations of the reference", len(routes))
}

// TestReferenceFitsItself: the rules find no fault in the reference itself.
func TestReferenceFitsItself(t *testing.T) {
	t.Parallel()
	ref := read(t, "testdata", "aio-openapi.json")
	found, err := Compare(ref, ref)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range found {
		t.Error(f)
	}
}

func read(t *testing.T, path ...string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(path...))
	if err != nil {
		t.Fatal(err)
	}
	return data
}
