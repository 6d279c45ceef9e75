package proc

import (
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// printSignals is a command that prints which signals it blocks and ignores.
var printSignals = []string{"grep", "-E", "Sig(Blk|Ign)", "/proc/self/status"}

// playIgnoring starts a program in one of both ways.
func playIgnoring(way string) int {
	if way == "init" {
		return Init(InitConfig{Argv: append([]string{"/usr/bin/env"}, printSignals...), Env: []string{"PATH=" + defaultPath}})
	}
	r := New(Config{})
	defer r.Close()
	p, err := r.Start(Command{Path: printSignals[0], Args: printSignals[1:], Stdout: os.Stdout})
	if err != nil {
		return 1
	}
	<-p.Done()
	return p.Exit().Code
}

// Programs of a server that was started with nohup, in the background of a script or with blocked
// signals neither ignore nor block signals.
func TestProgramsDoNotIgnoreSignals(t *testing.T) {
	t.Parallel()
	testenv.Need(t, "bash", "grep")
	own, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, way := range []string{"runner", "init"} {
		cmd := exec.Command("bash", "-c", `trap "" HUP INT QUIT PIPE TERM TSTP TTIN TTOU USR1 34 64; exec "$0" ignoring `+way, own)
		out, err := runBlocking(cmd)
		const none = "0000000000000000"
		if want := "SigBlk:\t" + none + "\nSigIgn:\t" + none + "\n"; err != nil || !strings.HasSuffix(out, want) {
			t.Errorf("%s: a program printed %q, %v; want %q", way, out, err, want)
		}
	}
}

// runBlocking runs a command that blocks all signals.
func runBlocking(cmd *exec.Cmd) (string, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var all, before unix.Sigset_t
	for i := range all.Val {
		all.Val[i] = ^all.Val[i]
	}
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, &all, &before); err != nil {
		return "", err
	}
	defer unix.PthreadSigmask(unix.SIG_SETMASK, &before, nil)
	out, err := cmd.CombinedOutput()
	return string(out), err
}
