package e2e

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// Every command in the table for users of docker, kubectl, gh and flyctl does what its note says, in the order of the table.
func TestFamiliarCommands(t *testing.T) {
	t.Parallel()
	testenv.Need(t, "python3")
	text, err := os.ReadFile("../../docs/guide/from-docker.md")
	if err != nil {
		t.Fatal(err)
	}
	h := serveHub(t)
	dir := t.TempDir()
	if err := os.Mkdir(dir+"/proj", 0o755); err != nil {
		t.Fatal(err)
	}
	writeFile(t, dir+"/proj/file", "content")
	writeFile(t, dir+"/token.txt", "secret")
	// A pipe in a cell is escaped.
	row := regexp.MustCompile("(?m)^\\| `(.+)` \\| `(.+)` \\| (.*) ?\\|$")
	prints := regexp.MustCompile("prints `([^`]+)`")
	rows := row.FindAllStringSubmatch(string(text), -1)
	if len(rows) < 40 {
		t.Fatalf("got %d rows, want at least 40", len(rows))
	}
	port := strconv.Itoa(testenv.FreePort(t))
	for _, r := range rows {
		line, note := strings.ReplaceAll(strings.ReplaceAll(r[2], `\|`, "|"), "8080", port), r[3]
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		cmd := exec.CommandContext(ctx, "bash", "-eo", "pipefail", "-c", line)
		cmd.Dir, cmd.Env = dir, environment(t.TempDir(), h.env)
		cmd.Env = append(cmd.Env, "PATH="+filepath.Dir(cove)+":"+os.Getenv("PATH"))
		if strings.Contains(note, "until Ctrl-C") {
			interruptAfterOutput(t, line, cmd)
			continue
		}
		in, err := cmd.StdinPipe() // a person who leaves each shell
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(in, "exit 0\n"); err != nil {
			t.Fatal(err)
		}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("%s: got error %v and %s", line, err, out)
		}
		if want := prints.FindStringSubmatch(note); want != nil && !bytes.Contains(out, []byte(want[1])) {
			t.Errorf("%s: got %s, want %q", line, out, want[1])
		}
	}
	if b, err := os.ReadFile(dir + "/out/file"); string(b) != "content" {
		t.Errorf("the copied folder: got %q and error %v, want the content of the file", b, err)
	}
}

// interruptAfterOutput types Ctrl-C once a command has printed something.
func interruptAfterOutput(t *testing.T, line string, cmd *exec.Cmd) {
	t.Helper()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var errs bytes.Buffer
	cmd.Stderr = &errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if first, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Errorf("%s: got %q, error %v and %s, want output", line, first, err, &errs)
	}
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Error(err)
	}
	err = cmd.Wait()
	if state, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); exitCode(err) != 130 && !(ok && state.Signal() == syscall.SIGINT) {
		t.Errorf("%s: got %v and %s after Ctrl-C, want exit code 130", line, err, &errs)
	}
}
