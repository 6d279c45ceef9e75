package proc

import (
	"bufio"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/creack/pty"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// running is the guard's pid, 0 while there is none.
func (g *guard) running() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.pid
}

// playVictim is a server that will be killed. It starts processes as servers do,
// writes the numbers of all processes, the guard's first, and waits.
func playVictim(how string) error {
	r := New(Config{Guard: guardArgv()})
	out := NewCapture(1<<12, 0)
	master, slave, err := pty.Open()
	if err != nil {
		return err
	}
	go func() { _, _ = io.Copy(out, master) }()
	var pids []int
	for _, c := range []Command{
		bash("exec sleep 1h"),
		bash("sleep 1h & echo $!; wait"),
		bash("setsid sleep 1h & echo $!"), // a daemon: marked, in no group of the runner
		bash("env -i sleep 1h & echo $!"), // not marked, in the group of an ended leader
		{Path: "env", Args: []string{"-i", "bash", "-c", "sleep 1h & echo $!; wait"}, Session: true},
		{Path: "bash", Args: []string{"--norc", "-i"}, TTY: slave},
	} {
		if c.TTY == nil {
			c.Stdout = out
		}
		p, err := r.Start(c)
		if err != nil {
			return err
		}
		pids = append(pids, p.PID())
	}
	// Two jobs, one of them without the mark and ignoring SIGHUP.
	_, err = master.WriteString("sleep 1h & echo \"\n$!\n\"; (trap '' HUP; exec env -i sleep 1h) & echo \"\n$!\n\"\n")
	if err != nil {
		return err
	}
	if !testenv.Eventually(func() bool { return len(numbersIn(out.String())) >= 6 }) {
		return fmt.Errorf("output %q", out)
	}
	pids = append(pids, numbersIn(out.String())...)
	if first := r.guard.running(); how == "guard was lost" {
		if err := syscall.Kill(first, syscall.SIGKILL); err != nil {
			return err
		}
		if !testenv.Eventually(func() bool { now := r.guard.running(); return now != first && now != 0 }) {
			return errors.New("the guard was not replaced")
		}
	}
	fmt.Println(r.guard.running(), strings.Trim(fmt.Sprint(pids), "[]"))
	testenv.Hang()
	return nil
}

// self is a command that runs this test binary.
func self(args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = []string{"PATH=" + defaultPath}
	cmd.Stderr = os.Stderr
	return cmd
}

func TestKilledServerLeavesNothing(t *testing.T) {
	t.Parallel()
	testenv.Need(t, "bash", "setsid")
	for _, c := range []struct {
		name string
		kill func(pid int) error
	}{
		{"server alone", func(pid int) error { return syscall.Kill(pid, syscall.SIGKILL) }},
		{"its whole group", func(pid int) error { return syscall.Kill(-pid, syscall.SIGKILL) }},
		{"guard was lost", func(pid int) error { return syscall.Kill(pid, syscall.SIGKILL) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			// A process of another server, which must not be touched.
			r := newRunner(t, Config{})
			stranger := start(t, r, Command{Path: "sleep", Args: []string{"1h"}, Env: []string{"PATH=" + defaultPath, markName + "=" + rand.Text()}})

			cmd := self("victim", c.name)
			cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			line, err := bufio.NewReader(out).ReadString('\n')
			pids := numbersIn(line)
			if err != nil || len(pids) < 12 {
				t.Errorf("the server printed %q, %v, want at least 12 pids", line, err)
			}
			lived := 0
			for _, pid := range pids {
				if alive(pid) {
					lived++
				}
			}
			if lived < 10 { // two of the leaders have ended by themselves
				t.Errorf("%d of %v lived before, want at least 10", lived, pids)
			}
			if err := c.kill(cmd.Process.Pid); err != nil {
				t.Error(err)
			}
			_ = cmd.Wait()
			for _, pid := range pids {
				testenv.Poll(t, fmt.Sprintf("end of %d, %s", pid, cmdline(pid)), func() bool { return !alive(pid) })
			}
			if !alive(stranger.PID()) {
				t.Error("a process with another mark was killed")
			}
		})
	}
}

func cmdline(pid int) string {
	line, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
	return strings.ReplaceAll(string(line), "\x00", " ")
}

func TestGuardIgnoresSignals(t *testing.T) {
	t.Parallel()
	r := newRunner(t, Config{Guard: guardArgv()})
	start(t, r, bash("exec sleep 1h"))
	pid := r.guard.running()
	want := uint64(1<<(syscall.SIGTERM-1) | 1<<(syscall.SIGINT-1) | 1<<(syscall.SIGHUP-1))
	testenv.Poll(t, "TERM, INT and HUP are ignored", func() bool {
		status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		_, rest, _ := strings.Cut(string(status), "SigIgn:\t")
		mask, _ := strconv.ParseUint(strings.SplitN(rest, "\n", 2)[0], 16, 64)
		return mask&want == want
	})
	if e, ok := readEntry(pid); !ok || e.session != pid {
		t.Errorf("it has no separate session: %+v, %v, want session %v", e, ok, pid)
	}
	if environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid)); err != nil || len(environ) != 0 {
		t.Errorf("its environment is %q, %v, want no environ", environ, err)
	}
}

func TestBrokenGuardIsAbandoned(t *testing.T) {
	t.Parallel()
	for _, argv := range [][]string{{"/bin/false"}, {"/no/such/guard"}} {
		r := newRunner(t, Config{Guard: argv})
		testenv.Poll(t, "no further tries", func() bool {
			if res, err := r.Run(t.Context(), bash("exit 3")); err != nil || res.Exit.Code != 3 {
				t.Fatalf("%v, %v, want Code 3", res.Exit, err)
			}
			r.guard.mu.Lock()
			defer r.guard.mu.Unlock()
			return r.guard.short >= guardTries && r.guard.lease == nil
		})
	}
}

func TestGuardRefusesInvalidInput(t *testing.T) {
	t.Parallel()
	nonce := rand.Text()
	for _, c := range []struct {
		in   string
		code int
	}{
		{"", 2},
		{"\n", 2},
		{nonce, 2},
		{nonce[:10] + "\n", 2},
		{nonce + nonce + "\n", 2},
		{nonce + "\nhello\n", 2},
		{nonce + "\n" + goodbye, 0},
	} {
		cmd := self("guard")
		cmd.Stdin = strings.NewReader(c.in)
		_ = cmd.Run()
		if got := cmd.ProcessState.ExitCode(); got != c.code {
			t.Errorf("%q: code %d, want %d", c.in, got, c.code)
		}
	}
}

// TestSweepSparesAReusedNumber: a number in the table of groups may belong to another group
// when the guard reads it.
func TestSweepSparesAReusedNumber(t *testing.T) {
	t.Parallel()
	r := newRunner(t, Config{})
	p := start(t, r, bash("exec sleep 1h"))
	e, _ := readEntry(p.PID())
	table, err := os.Create(t.TempDir() + "/table")
	if err != nil {
		t.Fatal(err)
	}
	defer table.Close()
	g := &guard{table: table}
	g.set(0, p.PID(), e.start-1)
	g.set(2, 1, 0)
	s := &sweep{nonce: rand.Text(), groups: readGroups(table, bootTicks())}
	if len(s.groups) != 1 {
		t.Errorf("groups: %+v, want 1 group", s.groups)
	}
	if n := s.signal(syscall.SIGKILL); n != 0 || len(s.groups) != 0 || !alive(p.PID()) {
		t.Errorf("%d signaled, groups %v, want none and process %d alive", n, s.groups, p.PID())
	}
	g.set(0, p.PID(), 0)
	s.groups = readGroups(table, bootTicks())
	if !s.kill(patience) {
		t.Error("processes remain")
	}
	if exit := wait(t, p); exit.Signal != syscall.SIGKILL {
		t.Errorf("it %v, want signal SIGKILL", exit)
	}
}
