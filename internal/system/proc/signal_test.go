package proc

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// playIgnoring starts a program and prints the signals that it ignores.
func playIgnoring() error {
	r := New(Config{})
	p, err := r.Start(Command{Path: "grep", Args: []string{"SigIgn", "/proc/self/status"}, Stdout: os.Stdout})
	if err != nil {
		return err
	}
	<-p.Done()
	return r.Close()
}

// Programs of a server that was started with nohup, or in the background of a script, do not
// ignore signals.
func TestProgramsDoNotIgnoreSignals(t *testing.T) {
	t.Parallel()
	testenv.Need(t, "bash", "grep")
	own, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("bash", "-c", `trap "" HUP INT; exec "$0" ignoring`, own).CombinedOutput()
	_, mask, _ := strings.Cut(string(out), "SigIgn:")
	ignored, bad := strconv.ParseUint(strings.TrimSpace(mask), 16, 64)
	const hangupAndInterrupt = 1<<(syscall.SIGHUP-1) | 1<<(syscall.SIGINT-1)
	if err != nil || bad != nil || ignored&hangupAndInterrupt != 0 {
		t.Errorf("a program got %q, %v; want that it ignores neither SIGHUP nor SIGINT", out, err)
	}
}
