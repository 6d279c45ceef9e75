package arch

import (
	"fmt"
	"testing"
	"testing/fstest"
)

// TestWords checks one text of each kind.
func TestWords(t *testing.T) {
	t.Parallel()
	list := []Word{{"anew", "again"}, {"lest", "so that"}, {"handed out", "issued"}}
	for text, want := range map[string]string{
		"// Create it anew.":                  `1: words: "anew": write again`,
		"// A process of its own starts it.":  `1: words: "A process of its own": write own before the noun, or separate`,
		"// in namespaces of their own, with": `1: words: "of their own,": write own before the noun, or separate`,
		"// the ports of its own sandbox":     "",
		"// the ports of its own\n// sandbox": "",
		"// Anew, it starts.":                 `1: words: "Anew": write again`,
		"// The tests renewed the lease.":     "",
		"// Its own process starts it.":       "",

		"\n// a key is handed\n// out twice":                 `2: words: "handed out": write issued`,
		"x\n\ta := \"a key is handed \" +\n\t\t\"out here\"": `2: words: "handed out": write issued`,
		"  - a key is handed\n\n  out":                       "",
		"func TestGraceOfHandedOutKeys() {":                  `1: words: "Handed Out": write issued`,
		"create_anew = 1":                                    `1: words: "anew": write again`,
		"var renewAnewHTTP":                                  `1: words: "Anew": write again`,
		"base64 dAnewd aNew":                                 "",

		"// The hub who owns it replies.":        `1: words: "hub who": write that`,
		"// a request of the\n// processes who":  `2: words: "processes who": write that`,
		"// a URL to show to who uses it":        `1: words: "to who uses": write a noun: clients that, callers that`,
		"// Who waits gets\n// an error.":        `1: words: "Who waits gets an error.": write a noun: a client that, a caller that`,
		"// Who started it? Ask.":                "",
		"# Find out who did what":                "",
		"// People who watch may take over.":     "",
		`fmt.Println("returns who has control")`: "",
	} {
		faults, err := checkWords(fstest.MapFS{"a": &fstest.MapFile{Data: []byte(text + "\n")}}, list)
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		if len(faults) > 0 {
			got = faults[0].String()[len("a:"):]
		}
		if got != want || len(faults) > 1 {
			t.Errorf("%q: got faults %q, want %q", text, faults, want)
		}
	}
}

// TestWordsOfFiles puts a phrase into files of all kinds.
func TestWordsOfFiles(t *testing.T) {
	t.Parallel()
	const text = "start it anew\n"
	for name, want := range map[string]bool{
		"Makefile": true, "go.mod": true, "scripts/deps": true, "deploy/Dockerfile": true, "deploy/x.service": true,
		"deploy/chart/templates/_a.tpl": true, "web/icon.svg": true, "scripts/types/a.d.ts": true, "web/a.cjs": true,
		".github/workflows/a.yml": true, ".gitignore": true, "internal/hub/testdata/a.html": true, "internal/hub/bin/a.go": true,
		"go.sum": false, "LICENSE": false, "web/vendor/a.js": false, "bin/aio": false, ".git/HEAD": false, ".venv-1/a.py": false,
		"test/page/node_modules/a.js": false, "test/page/package-lock.json": false,
	} {
		faults, err := checkWords(fstest.MapFS{name: &fstest.MapFile{Data: []byte(text)}}, []Word{{"anew", "again"}})
		if err != nil || (len(faults) == 1) != want {
			t.Errorf("%s: got faults %q, %v, want a fault: %v", name, faults, err, want)
		}
	}
	binary := fstest.MapFS{"a.png": &fstest.MapFile{Data: []byte(text + "\x00")}, "b.gz": &fstest.MapFile{Data: []byte(text + "\xff")}}
	if faults, err := checkWords(binary, []Word{{"anew", "again"}}); err != nil || fmt.Sprint(faults) != "[]" {
		t.Errorf("binary files: got faults %q, %v, want none", faults, err)
	}
}
