package verb

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/internal/surface/cli"
)

func TestNewPartOfALog(t *testing.T) {
	for _, c := range []struct{ before, now, want string }{
		{"", "abc", "abc"}, {"abc", "abc", ""}, {"abc", "abcd", "d"}, {"abc", "bcd", "d"}, {"abc", "xyz", "xyz"}, {"aab", "abab", "ab"},
	} {
		if got := string(newPart([]byte(c.before), []byte(c.now))); got != c.want {
			t.Errorf("newPart(%q, %q): got %q, want %q", c.before, c.now, got, c.want)
		}
	}
}

func TestProjectFile(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "My Shop!")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "cove.yaml")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("init: make\nfiles:\n  app: ./src\n  a.txt: {content: hi}\nports: [3000]\n")
	p, err := readProject(file)
	if err != nil {
		t.Fatal(err)
	}
	if p.Name != "my-shop" || len(p.Init) != 1 || p.Files["app"].path != "./src" || p.Files["a.txt"].content != "hi" || p.Ports[0] != 3000 {
		t.Errorf("got %+v, want the name of the folder and the file's content", p)
	}
	for text, want := range map[string]string{"nmae: x\n": "nmae", "files: {a: [1]}\n": "a path of this machine", "ports: x\n": "line 1"} {
		write(text)
		if _, err := readProject(file); cli.Code(err) != cli.ExitUsage || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want an error with %q", text, err, want)
		}
	}
	if _, err := readProject(filepath.Join(dir, "none.yaml")); err == nil || !strings.Contains(err.Error(), "--file") {
		t.Errorf("got %v, want a hint to use --file", err)
	}
}
