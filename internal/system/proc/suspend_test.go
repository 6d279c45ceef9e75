package proc

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// playSuspend is the first process of a namespace: it starts a shell, and suspends and resumes processes on commands from its input.
func playSuspend(script string) error {
	if err := errors.Join(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""), unix.Mount("proc", "/proc", "proc", 0, "")); err != nil {
		return err
	}
	cmd := exec.Command("bash", "-c", script)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return err
	}
	resume := func() {}
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		var err error
		what, pid, _ := strings.Cut(in.Text(), " ")
		switch what {
		case "stopped":
			if n, _ := strconv.Atoi(pid); n == 0 || !halted(n, "") {
				err = fmt.Errorf("process %s is running", pid)
			}
		case "suspend":
			resume, err = SuspendOthers()
		case "resume":
			resume()
			resume() // which does nothing
		}
		if err != nil {
			return err
		}
		fmt.Println("done")
	}
	return nil
}

// TestSuspend: all processes are stopped, even during starts; then all resume, except those that were stopped before.
func TestSuspend(t *testing.T) {
	t.Parallel()
	testenv.NeedRoot(t)
	testenv.Need(t, "bash", "sleep")
	dir := t.TempDir()
	// Many short processes, an interactive shell with a job, and a process that its owner has stopped.
	script := `cd ` + dir + `
for i in 1 2 3 4; do (n=0; while :; do n=$((n+1)); /bin/true; echo $n >count.$i; done) & done
sleep 1000 & kill -STOP $!; echo $! >stopped
until grep -q '^State:.T' /proc/$!/status; do :; done
echo ready >ready; wait`
	cmd := exec.Command("/proc/self/exe", "play-suspend", script)
	cmd.Stderr = os.Stderr
	// it ends with its input; a Pdeathsig would end it with a thread that another test ends
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	out := bufio.NewReader(pipe)
	say := func(what string) {
		t.Helper()
		if _, err := io.WriteString(in, what+"\n"); err != nil {
			t.Fatal(err)
		}
		if line, err := out.ReadString('\n'); line != "done\n" {
			t.Fatalf("%s: got %q, %v", what, line, err)
		}
	}
	read := func() string {
		all := []string{}
		for i := range 4 {
			data, _ := os.ReadFile(fmt.Sprintf("%s/count.%d", dir, i+1))
			all = append(all, strings.TrimSpace(string(data)))
		}
		return strings.Join(all, " ")
	}
	testenv.Poll(t, "all run", func() bool {
		_, err := os.Stat(dir + "/ready")
		return err == nil && len(strings.Fields(read())) == 4
	})
	for range 20 {
		say("suspend")
		before := read()
		for range 1000 { // long enough for a process that runs
			if now := read(); now != before {
				t.Fatalf("got %s, want %s: something runs", now, before)
			}
		}
		say("resume")
		testenv.Poll(t, "all resume", func() bool {
			for i, now := range strings.Fields(read()) {
				if now == strings.Fields(before + " 0 0 0 0")[i] {
					return false
				}
			}
			return true
		})
	}
	pid, err := os.ReadFile(dir + "/stopped")
	if err != nil {
		t.Fatal(err)
	}
	say("stopped " + strings.TrimSpace(string(pid)))
}
