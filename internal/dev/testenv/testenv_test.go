package testenv

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
)

func TestMain(m *testing.M) { Main(m) }

// recorder replaces the test that calls Need: its verdict ends the call.
type recorder struct {
	testing.TB
	verdict string
}

func (r *recorder) Helper()           {}
func (r *recorder) Skip(args ...any)  { r.verdict = "skip: " + fmt.Sprint(args...); panic(r) }
func (r *recorder) Fatal(args ...any) { r.verdict = "fatal: " + fmt.Sprint(args...); panic(r) }

func verdict(need func(testing.TB)) string {
	r := &recorder{}
	func() {
		defer func() {
			if v := recover(); v != nil && v != any(r) {
				panic(v)
			}
		}()
		need(r)
	}()
	return r.verdict
}

func TestNeed(t *testing.T) {
	empty := t.TempDir()
	for _, c := range []struct{ name, ci, path, program, want string }{
		{"there", "true", os.Getenv("PATH"), "sh", ""},
		{"laptop", "", empty, "rg", "skip: needs the program rg (Debian package ripgrep)"},
		{"ci", "true", empty, "rg", "fatal: needs the program rg (Debian package ripgrep)"},
		{"own package", "1", empty, "openbox", "fatal: needs the program openbox"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv("TEST_LANE", "test")
			t.Setenv("CI", c.ci)
			t.Setenv("PATH", c.path)
			if got := verdict(func(tb testing.TB) { Need(tb, c.program) }); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestLeaksAreNoticed(t *testing.T) {
	before := openFiles()
	f, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	if left := newFiles(before); len(left) != 1 || !strings.HasSuffix(left[0], " /dev/null") {
		t.Errorf("open file: got %q, want /dev/null", left)
	}
	f.Close()

	Need(t, "cat")
	cmd := exec.Command("cat")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if left := childProcesses(os.Getpid()); len(left) != 1 || !strings.Contains(left[0], "cat") {
		t.Errorf("child: got %q, want cat", left)
	}
	in.Close()
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	if left := childProcesses(os.Getpid()); len(left) != 0 {
		t.Errorf("after wait: got %q, want none", left)
	}
}

// TestEverythingHasTimeToEnd: goroutines too, for which goleak alone waits about a second.
func TestEverythingHasTimeToEnd(t *testing.T) {
	asked := 0
	if left := settled(func() string { asked++; return strings.Repeat("a goroutine", max(0, 20-asked)) }); left != "" {
		t.Errorf("got %q left after %d looks, want nothing", left, asked)
	}
}
