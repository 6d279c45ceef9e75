package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// in runs a command line of cove in a folder.
func (h *hub) in(t *testing.T, dir string, args ...string) (out string, code int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), cove, args...)
	cmd.Dir, cmd.Env = dir, environment(t.TempDir(), h.env)
	b, err := cmd.CombinedOutput()
	if err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return string(b), cmd.ProcessState.ExitCode()
}

// A script gets its arguments that are files, and its results come back, without other files.
func TestRunCopiesFilesAndResults(t *testing.T) {
	t.Parallel()
	testenv.Need(t, "python3")
	h := serveHub(t)
	dir := t.TempDir()
	writeFile(t, dir+"/analyse.py", `import sys, os
rows = open(sys.argv[1]).read().split()
open("sum.txt", "w").write(str(sum(map(int, rows))))
os.makedirs("plots/deep")
open("plots/deep/p.txt", "w").write("plot")
os.symlink("/etc/passwd", "leak")
print(sys.argv[1:])
sys.exit(3)
`)
	writeFile(t, dir+"/data.csv", "1 2 3")
	writeFile(t, dir+"/sum.txt", "mine")
	for range 2 { // the second run replaces the results of the first
		out, code := h.in(t, dir, "run", "analyse.py", "data.csv", "--flag")
		if code != 3 || !strings.Contains(out, "['data.csv', '--flag']") || !strings.Contains(out, "analyse-results/sum.txt") {
			t.Errorf("got %q and exit code %d, want the arguments, the results and 3", out, code)
		}
	}
	for name, want := range map[string]string{"analyse-results/sum.txt": "6", "analyse-results/plots/deep/p.txt": "plot", "sum.txt": "mine"} {
		if b, err := os.ReadFile(filepath.Join(dir, name)); string(b) != want {
			t.Errorf("%s: got %q and error %v, want %q", name, b, err, want)
		}
	}
	for _, name := range []string{"leak", "data.csv", "analyse.py", "__pycache__"} {
		if _, err := os.Lstat(filepath.Join(dir, "analyse-results", name)); err == nil {
			t.Errorf("got %s among the results, want only what the script wrote", name)
		}
	}
	writeFile(t, dir+"/quiet.py", "print(1)")
	if out, code := h.in(t, dir, "run", "quiet.py"); code != 0 || out != "1\n" {
		t.Errorf("got %q and exit code %d, want 1", out, code)
	}
	if _, err := os.Stat(dir + "/quiet-results"); err == nil {
		t.Error("got a folder without results, want none")
	}
	// A link that the user has placed does not lead results elsewhere.
	outside := t.TempDir()
	if err := os.Symlink(outside, dir+"/plots"); err != nil {
		t.Fatal(err)
	}
	if out, code := h.in(t, dir, "run", "--results", ".", "analyse.py", "data.csv"); code == 0 {
		t.Errorf("got %q, want a failure", out)
	}
	if list, err := os.ReadDir(outside); err != nil || len(list) > 0 {
		t.Errorf("got %v and error %v outside of the results, want nothing", list, err)
	}
}

// TypeScript runs with the Node.js of the sandbox, or the error names the requirement.
func TestRunTypeScript(t *testing.T) {
	t.Parallel()
	testenv.Need(t, "node")
	h := serveHub(t)
	dir := t.TempDir()
	writeFile(t, dir+"/s.ts", "const a: { x: number } = { x: 42 }\nconsole.log('typed', a.x, process.argv[2])\n")
	able := exec.CommandContext(t.Context(), "node", "--experimental-strip-types", "-e", "0").Run() == nil
	out, code := h.in(t, dir, "run", "s.ts", "one")
	if able && (code != 0 || out != "typed 42 one\n") || !able && code != 0 && (code != 127 || !strings.Contains(out, "Node.js 22.6")) {
		t.Errorf("with a capable Node.js: %v; got %q and exit code %d", able, out, code)
	}
}

// Files and folders keep their names in existing folders, as with docker cp and scp.
func TestCopyNames(t *testing.T) {
	t.Parallel()
	h := serveHub(t)
	h.must(t, "create", "a")
	dir := t.TempDir()
	for _, name := range []string{"proj/f", "proj/sub/g", "x:y", "one", "two"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		writeFile(t, filepath.Join(dir, name), name)
	}
	for _, c := range []struct{ line, want string }{
		{"cp proj a:", "proj/f proj/sub/g"},
		{"cp -r proj a:", "proj/f proj/sub/g"},
		{"cp proj a:new", "new/f new/sub/g"},
		{"cp proj a:new", "new/f new/proj/f new/proj/sub/g new/sub/g"},
		{"cp proj/. a:content", "content/f content/sub/g"},
		{"cp proj a:slash/", "slash/proj/f slash/proj/sub/g"},
		{"cp ./x:y a:", "x:y"},
		{"cp one two a:several", "several/one several/two"},
	} {
		if out, code := h.in(t, dir, strings.Fields(c.line)...); code != 0 {
			t.Errorf("cove %s: got %q and exit code %d, want 0", c.line, out, code)
		}
		top, _, _ := strings.Cut(c.want, "/")
		if got := h.must(t, "exec", "a", "find "+top+" -type f | sort | paste -sd ' '"); got != c.want+"\n" {
			t.Errorf("cove %s: got %q, want %q", c.line, got, c.want)
		}
	}
	if out, code := h.in(t, dir, "cp", "proj", "a:proj/f"); code != 1 || !strings.Contains(out, "is a file") {
		t.Errorf("got %q and exit code %d, want a refusal", out, code)
	}
}

// exec takes its flags before and after the name, leaves those of the command alone, and reads standard input only with -i.
func TestExecFlags(t *testing.T) {
	t.Parallel()
	h := serveHub(t)
	h.must(t, "create", "a")
	for _, c := range []struct{ line, want string }{
		{"exec a ls -d /", "/"},
		{"exec a -w /tmp -- pwd", "/tmp"},
		{"exec -w /tmp -e A=1 a printenv A PWD", "1\n/tmp"},
		{"exec -u root a id -u", "0"},
		{"exec a cat", ""},
		{"exec -i a cat", "typed"},
		{"run -- cat", ""},
	} {
		out, errs, code := h.cove(t, "typed", strings.Fields(c.line)...)
		if code != 0 || strings.TrimSpace(out) != c.want {
			t.Errorf("cove %s: got %q, %q and exit code %d, want %q", c.line, out, errs, code, c.want)
		}
	}
	const line = "test -t 0 && echo is a terminal; exit 4"
	if out, _, code := h.cove(t, "", "exec", "-it", "a", line); code != 4 || !strings.Contains(out, "is a terminal") {
		t.Errorf("got %q and exit code %d, want a terminal and 4", out, code)
	}
	const context = `test -t 0 && echo "got $(id -u) $PWD $A $B"`
	if out, errs, code := h.cove(t, "", "exec", "-it", "-u", "root", "-w", "/tmp", "-e", "A=it's", "-e", "B=2", "a", context); code != 0 ||
		!strings.Contains(out, "got 0 /tmp it's 2") {
		t.Errorf("got %q, %q and exit code %d, want user, folder and variables of the terminal", out, errs, code)
	}
	for _, c := range []struct {
		line, want string
		code       int
	}{
		{"exec -it -w /missing a touch /tmp/ran", "/missing: No such file or directory", 126},
		{"exec -it -w /missing -e A=1 a touch /tmp/ran", "/missing: No such file or directory", 126},
		{"exec -it -e A-B=1 a touch /tmp/ran", "not a valid identifier", 126},
		{"exec -w /missing a touch /tmp/ran", `--workdir "/missing" does not exist`, 1},
		{"exec -it --timeout 5s a touch /tmp/ran", "--timeout does not apply to a terminal", 2},
		{"exec -it a --session s touch /tmp/ran", "--session does not apply to a terminal", 2},
		{"run -t --timeout 5s touch /tmp/ran", "--timeout does not apply to a terminal", 2},
		{"run -d -p 8080:3000 --name web true", "cove port-forward web 8080:3000", 2},
		{"run -d -p 8080:3000 true", "cove port-forward NAME 8080:3000", 2},
	} {
		out, errs, code := h.cove(t, "echo typed too late > /tmp/ran\n", strings.Fields(c.line)...)
		if code != c.code || !strings.Contains(out+errs, c.want) {
			t.Errorf("cove %s: got %q, %q and exit code %d, want %q and %d", c.line, out, errs, code, c.want, c.code)
		}
	}
	if out := h.must(t, "exec", "a", "ls /tmp"); strings.Contains(out, "ran") {
		t.Errorf("got files %q, want no command run", out)
	}
	if out := h.must(t, "list", "-q"); out != "a\n" {
		t.Errorf("got sandboxes %q, want none of the rejected runs", out)
	}
}

// A command that the kernel killed because of the memory limit says so, and how to raise it.
func TestOutOfMemoryIsReported(t *testing.T) {
	t.Parallel()
	testenv.Need(t, "python3")
	h := serveHub(t)
	const want = "reached its memory limit of 96Mi"
	eat := []string{"python3", "-c", "b = [bytearray(1 << 20) for _ in range(1 << 20)]"}
	_, errs, code := h.cove(t, "", append([]string{"run", "--memory-limit", "96Mi", "--"}, eat...)...)
	if code != 137 || !strings.Contains(errs, want) || !strings.Contains(errs, "--memory-limit") {
		t.Errorf("run: got %q and exit code %d, want %q, the flag and 137", errs, code, want)
	}
	h.must(t, "create", "a", "--memory-limit", "96Mi")
	if _, errs, code := h.cove(t, "", "exec", "a", "kill -9 $$"); code != 137 || errs != "" {
		t.Errorf("a command that kills itself: got %q and exit code %d, want only 137", errs, code)
	}
	if _, errs, code = h.cove(t, "", append([]string{"exec", "a", "--"}, eat...)...); code != 137 || !strings.Contains(errs, want) {
		t.Errorf("exec: got %q and exit code %d, want %q and 137", errs, code, want)
	}
	if out, errs, code := h.cove(t, "", append([]string{"exec", "-it", "a", "--"}, eat...)...); code != 137 || !strings.Contains(errs, want) {
		t.Errorf("exec -it: got %q, %q and exit code %d, want %q and 137", out, errs, code, want)
	}
}

// The end of a pipe ends what a terminal runs, also a program that has not started yet.
func TestTerminalOfAPipe(t *testing.T) {
	t.Parallel()
	h := serveHub(t)
	h.must(t, "create", "a")
	for _, c := range []struct {
		line, typed, want string
		code              int
	}{
		{"shell a", "echo in $((1 + 1)); exit 5", "in 2", 5},
		{"shell a", "echo in $((1 + 1))\nfalse\n", "in 2", 1},
		{"shell a", "", "", 0},
		{"exec -it a cat", "typed\n", "typed", 0},
		{"exec -it a cat", "", "", 0},
		{"exec -it a bash", "", "", 0},
	} {
		out, errs, code := h.cove(t, c.typed, strings.Fields(c.line)...)
		if code != c.code || errs != "" || !strings.Contains(out, c.want) {
			t.Errorf("cove %s with %q: got %q, %q and exit code %d, want %q and %d", c.line, c.typed, out, errs, code, c.want, c.code)
		}
	}
}

// Waiting for a sandbox that has failed ends with the reason.
func TestWaitForAFailedSandbox(t *testing.T) {
	t.Parallel()
	h := serveHub(t)
	h.must(t, "create", "a")
	lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", h.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, list := range lists { // the first processes of sandboxes
		children, _ := os.ReadFile(list) // empty if the thread has ended
		for _, child := range strings.Fields(string(children)) {
			pid, err := strconv.Atoi(child)
			if err == nil {
				err = syscall.Kill(pid, syscall.SIGKILL)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	h.must(t, "wait", "a", "--for", "failed")
	if _, errs, code := h.cove(t, "", "wait", "a"); code == 0 || !strings.Contains(errs, `sandbox "a" failed: `) {
		t.Errorf("got %q and exit code %d, want that the sandbox failed", errs, code)
	}
	h.must(t, "rm", "a")
}

// A detached command keeps running, its output is the log, and its port is reachable.
func TestRunDetached(t *testing.T) {
	t.Parallel()
	h := serveHub(t)
	if out, errs, code := h.cove(t, "", "run", "-d", "--name", "web", "-p", "3000", "--",
		"echo one; echo two >&2; exec sleep 1000"); code != 0 || out != "web\n" || !strings.Contains(errs, "/sandbox/web/proxy/3000/") {
		t.Fatalf("got %q, %q and exit code %d, want the name and the URL", out, errs, code)
	}
	testenv.Poll(t, "the command writes", func() bool { return h.must(t, "logs", "web") == "one\ntwo\n" })
	if out := h.must(t, "logs", "--tail", "1", "web"); out != "two\n" {
		t.Errorf("got %q, want the last line", out)
	}
	if out := h.must(t, "logs", "-n", "0", "web"); out != "" {
		t.Errorf("got %q, want nothing", out)
	}
}
