package pathname

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

func TestResolve(t *testing.T) {
	t.Parallel()
	b := Base{Home: "/home/gem", Workspace: "/ws"}
	for _, c := range []struct{ in, want string }{
		{"/a/b", "/a/b"},
		{"/a//b/../c/", "/a/c"},
		{"/../..", "/"},
		{"~", "/home/gem"},
		{"~/x y", "/home/gem/x y"},
		{"~other/x", "/ws/~other/x"},
		{"x", "/ws/x"},
		{"./x/../y", "/ws/y"},
		{".", "/ws"},
		{"line\nbreak", "/ws/line\nbreak"},
	} {
		if got, err := b.Resolve(c.in); err != nil || got != c.want {
			t.Errorf("Resolve(%q) = %q, %v; want %q", c.in, got, err, c.want)
		}
	}
	for _, in := range []string{"", "a\x00b"} {
		if _, err := b.Resolve(in); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("Resolve(%q): %v, want EINVAL", in, err)
		}
	}
	if _, err := (Base{}).Resolve("~"); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("without a home: %v, want EINVAL", err)
	}
}

func TestResolveNameThatIsNotUTF8(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	odd := filepath.Join(dir, "sub\xff", "a\xfe\xfdb")
	if err := os.MkdirAll(filepath.Dir(odd), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(odd, nil, 0o644); err != nil {
		testenv.Lack(t, fmt.Sprint("this file system takes only UTF-8 names: ", err))
	}
	wire, err := json.Marshal(odd)
	if err != nil {
		t.Fatal(err)
	}
	var shown string
	if err := json.Unmarshal(wire, &shown); err != nil {
		t.Fatal(err)
	}
	if shown != Show(odd) {
		t.Errorf("got Show(%q) = %q, but JSON carries %q, want %q", odd, Show(odd), shown, Show(odd))
	}
	if got, err := (Base{}).Resolve(shown); err != nil || got != odd {
		t.Errorf("Resolve(%q) = %q, %v; want %q", shown, got, err, odd)
	}
	if got, err := (Base{}).Resolve(odd); err != nil || got != odd {
		t.Errorf("the bytes themselves: got %q, %v, want %q", got, err, odd)
	}
	absent := filepath.Join(dir, "none\uFFFD")
	if got, err := (Base{}).Resolve(absent); err != nil || got != absent {
		t.Errorf("name without a file: got %q, %v, want %q", got, err, absent)
	}
	if err := os.WriteFile(filepath.Join(filepath.Dir(odd), "a\xfa\xfbb"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := (Base{}).Resolve(shown); err == nil || !strings.Contains(err.Error(), "2 names") {
		t.Errorf("two candidates: %v, want an error about both", err)
	}
}
