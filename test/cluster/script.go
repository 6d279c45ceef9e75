package cluster

import (
	"bufio"
	"cmp"
	"io"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// script is a running script. It prints "ready" after the start and after every line of input, and ends with its input.
type script struct {
	mu     sync.Mutex
	input  io.WriteCloser
	output *bufio.Reader
}

// startScript runs a script until the test ends, and calls cleanup first. If the script is not ready, startScript returns its
// output or its exit status.
func startScript(t testing.TB, cmd *exec.Cmd, cleanup func()) (s *script, why string, err error) {
	t.Helper()
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true} // an interrupt for us must not keep it from cleaning up
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err.Error(), err
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, err.Error(), err
	}
	s = &script{input: in, output: bufio.NewReader(out)}
	if line, _ := s.output.ReadString('\n'); line != "ready\n" {
		in.Close()
		return nil, cmp.Or(strings.TrimSpace(line), "it ended without a word"), cmd.Wait()
	}
	t.Cleanup(func() {
		cleanup()
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("stop %s: %v", cmd.Args[3], err)
		}
	})
	return s, "", nil
}

// send sends a line to the script and waits until it is ready.
func (s *script) send(t testing.TB, line string) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := io.WriteString(s.input, line+"\n"); err != nil {
		t.Fatal(err)
	}
	if got, err := s.output.ReadString('\n'); got != "ready\n" {
		t.Fatalf("%s: got %q, %v, want ready", line, got, err)
	}
}
