package arch

import (
	"flag"
	"os"
	"strings"
	"testing"
)

// TestGoldenExceptions lowers the exceptions to the present sizes with -update, a flag
// of testenv.Golden. Without it, TestHouse reports those that are too high.
func TestGoldenExceptions(t *testing.T) {
	if flag.Lookup("update").Value.String() != "true" {
		return
	}
	lowered, err := lowerExceptions(os.DirFS("../../.."), House)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile("exceptions.txt", []byte(lowered), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestExceptionsOnlyShrink checks a type with four methods, where three are allowed.
func TestExceptionsOnlyShrink(t *testing.T) {
	files := sound()
	files["internal/hub/bad.go"] = "//\n\npackage hub; type T struct{}; func (T) A() {}; func (*T) B() {}; func (T) C() {}; func (T) D() {}"
	for _, c := range []struct{ name, exceptions, want, lowered string }{
		{"exact", "method-count internal/hub.T 4\n", "", "method-count internal/hub.T 4\n"},
		{"grown", "method-count internal/hub.T 3\n", "may only shrink", "method-count internal/hub.T 3\n"},
		{"shrunk", "method-count internal/hub.T 5\n", "run make gen", "method-count internal/hub.T 4\n"},
		{"within the limit", "method-count internal/hub.T 4\nfunction-size internal/hub/bad.go:T.A 2\n", "run make gen",
			"method-count internal/hub.T 4\n"},
		{"no such type", "method-count internal/hub.T 4\nmethod-count internal/hub.U 4\n", "run make gen", "method-count internal/hub.T 4\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := rules(toy)
			r.Exceptions = c.exceptions
			got := check(t, files, r)
			if (len(got) > 0) != (c.want != "") || len(got) > 0 && !strings.Contains(got[0].Text, c.want) {
				t.Errorf("got faults %q, want %q", got, c.want)
			}
			if lowered, err := lowerExceptions(treeOf(files), r); err != nil || lowered != c.lowered {
				t.Errorf("lowered to %q (%v), want %q", lowered, err, c.lowered)
			}
		})
	}
}
