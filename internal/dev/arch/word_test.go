package arch

import (
	"testing"
	"testing/fstest"
)

// TestWords checks one line of each kind.
func TestWords(t *testing.T) {
	t.Parallel()
	list := []Word{{"anew", "again"}, {"lest", "so that"}}
	for line, want := range map[string]string{
		"// Create it anew.":                  `a.go:1: words: "anew": write again`,
		"// A process of its own starts it.":  `a.go:1: words: "A process of its own": write ` + own.Instead,
		"// in namespaces of their own, with": `a.go:1: words: "of their own,": write ` + own.Instead,
		"// the ports of its own sandbox":     "",
		"// Anew, it starts.":                 `a.go:1: words: "Anew": write again`,
		"// The tests renewed the lease.":     "",
		"// Its own process starts it.":       "",
	} {
		faults, err := checkWords(fstest.MapFS{"a.go": &fstest.MapFile{Data: []byte(line + "\n")},
			"web/vendor/b.js": &fstest.MapFile{Data: []byte("anew")}}, list)
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		if len(faults) > 0 {
			got = faults[0].String()
		}
		if got != want || len(faults) > 1 {
			t.Errorf("%s: got faults %q, want %q", line, faults, want)
		}
	}
}
