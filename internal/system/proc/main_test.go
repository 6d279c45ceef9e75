package proc

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// TestMain makes the test binary the programs that the tests start.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "guard":
			os.Exit(GuardMain(os.Stdin))
		case "victim":
			if err := playVictim(os.Args[2]); err != nil {
				fmt.Println(err)
				os.Exit(1)
			}
		case "init":
			os.Exit(playInit(os.Args[2], os.Args[3:]))
		case "ignoring":
			os.Exit(playIgnoring(os.Args[2]))
		case "play-suspend":
			if err := playSuspend(os.Args[2]); err != nil {
				fmt.Println(err)
				os.Exit(1)
			}
			return
		}
	}
	testenv.Main(m)
}

// guardArgv starts this test binary as guard.
func guardArgv() []string { return []string{"/proc/self/exe", "guard"} }

func newRunner(t testing.TB, cfg Config) *Runner {
	t.Helper()
	r := New(cfg)
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func start(t testing.TB, r *Runner, c Command) *Process {
	t.Helper()
	p, err := r.Start(c)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// bash is a command that runs a script.
func bash(script string, args ...string) Command {
	return Command{Path: "bash", Args: append([]string{"-c", script, "bash"}, args...)}
}

// patience bounds every wait in these tests, far above the usual time.
const patience = 2 * time.Minute

func wait(t testing.TB, p *Process) Exit {
	t.Helper()
	select {
	case <-p.Done():
	case <-time.After(patience):
		t.Fatalf("process %d is not done", p.PID())
	}
	return p.Exit()
}

func alive(pid int) bool {
	e, ok := readEntry(pid)
	return ok && !e.zombie
}

// number reads a pid that a program wrote to w.
func number(t testing.TB, w *Capture) int {
	t.Helper()
	return numbers(t, w, 1)[0]
}

func numbers(t testing.TB, w *Capture, n int) []int {
	t.Helper()
	var pids []int
	testenv.Poll(t, fmt.Sprintf("%d numbers in the output", n), func() bool {
		pids = numbersIn(w.String())
		return len(pids) >= n
	})
	return pids
}

// numbersIn finds the complete lines that are numbers.
func numbersIn(text string) (found []int) {
	for field := range strings.FieldsSeq(text[:strings.LastIndexByte(text, '\n')+1]) {
		if n, err := strconv.Atoi(field); err == nil {
			found = append(found, n)
		}
	}
	return found
}

func openFiles(t testing.TB) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}
