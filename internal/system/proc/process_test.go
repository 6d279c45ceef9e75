package proc

import (
	"context"
	"errors"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

func TestStop(t *testing.T) {
	t.Parallel()
	testenv.Need(t, "bash")
	for _, c := range []struct {
		name, script string
		grace        time.Duration // on a busy machine signal handlers are slow
		exit         Exit
	}{
		{"listens", "trap 'exit 7' TERM; echo $$ $$; sleep 1000 & wait", patience, Exit{Code: 7}},
		{"default", "echo $$ $$; exec sleep 1000", patience, Exit{Code: 143, Signal: syscall.SIGTERM}},
		{"stubborn", "trap '' TERM; echo $$ $$; while :; do sleep 1000; done", 300 * time.Millisecond, Exit{Code: 137, Signal: syscall.SIGKILL}},
		{"stubborn grandchild", "(trap '' TERM; echo $BASHPID; while :; do sleep 1000; done) & trap 'exit 9' TERM; " +
			"echo $$; wait", 5 * time.Second, Exit{Code: 9}},
		{"stopped", "trap 'exit 5' TERM; echo $$; kill -STOP $$; echo $$; sleep 1000 & wait", patience, Exit{Code: 5}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newRunner(t, Config{})
			out := NewCapture(1<<10, 0)
			cmd := bash(c.script)
			cmd.Stdout, cmd.Grace = out, c.grace
			p := start(t, r, cmd)
			pids := []int{p.PID()}
			if c.name == "stopped" {
				number(t, out)
				testenv.Poll(t, "it has stopped", func() bool {
					stat, _ := os.ReadFile("/proc/" + strconv.Itoa(p.PID()) + "/stat")
					return strings.Contains(string(stat), ") T ")
				})
			} else {
				pids = numbers(t, out, 2)
			}
			var wg sync.WaitGroup
			for range 4 {
				wg.Go(func() {
					if exit := p.Stop(); exit != c.exit {
						t.Errorf("got %v, want %v", exit, c.exit)
					}
					for _, pid := range pids {
						if alive(pid) {
							t.Errorf("process %d is running after Stop", pid)
						}
					}
				})
			}
			wg.Wait()
			if err := p.Signal(syscall.SIGTERM); !errors.Is(err, os.ErrProcessDone) {
				t.Errorf("signal afterwards: %v, want os.ErrProcessDone", err)
			}
			if living := r.Living(); len(living) != 0 {
				t.Errorf("living: %v, want no living", living)
			}
		})
	}
}

// TestSignalNewest: of the jobs of a shell only the last one is signaled, and none that was started
// before the given time.
func TestSignalNewest(t *testing.T) {
	t.Parallel()
	testenv.Need(t, "bash")
	r, out, began := newRunner(t, Config{}), NewCapture(1<<10, 0), time.Now()
	cmd := bash("set -m; sleep 1000 & sleep 0.1; sleep 1000 | sleep 1000 & sleep 0.1; jobs -p; wait %2; echo 0; wait")
	cmd.Stdout = out
	p := start(t, r, cmd)
	jobs := numbers(t, out, 2)
	for _, since := range []time.Time{time.Now(), time.Now().Add(time.Hour)} {
		if got := p.SignalNewest(syscall.SIGTERM, since); got != 0 {
			t.Errorf("got %d, want nothing that is so new", got)
		}
	}
	if got := p.SignalNewest(syscall.SIGTERM, began); got != jobs[1] {
		t.Errorf("got %d, want %d", got, jobs[1])
	}
	numbers(t, out, 3)
	if !alive(jobs[0]) || !groupEmpty(jobs[1]) {
		t.Errorf("got %v %v, want only the first job", alive(jobs[0]), !groupEmpty(jobs[1]))
	}
}

func TestWaitIsBoundedByItsContextOnly(t *testing.T) {
	t.Parallel()
	r := newRunner(t, Config{})
	p := start(t, r, bash("exec sleep 1000"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if exit, err := p.Wait(ctx); !errors.Is(err, context.Canceled) || exit.Code != -1 || p.Exit().Code != -1 {
		t.Errorf("got %v, %v, want code -1 and context.Canceled", exit, err)
	}
	if living := r.Living(); len(living) != 1 || living[0].PID != p.PID() || living[0].Background {
		t.Errorf("living: %+v, want %d in the foreground", living, p.PID())
	}
	if err := p.Signal(syscall.SIGINT); err != nil {
		t.Error(err)
	}
	if exit, err := p.Wait(t.Context()); err != nil || exit.Signal != syscall.SIGINT {
		t.Errorf("got %v, %v, want signal SIGINT", exit, err)
	}
}

// TestGroupOutlivesItsLeader: the rest of a group can be signaled after its leader was reaped.
func TestGroupOutlivesItsLeader(t *testing.T) {
	t.Parallel()
	r := newRunner(t, Config{})
	out := NewCapture(1<<10, 0)
	c := bash("sleep 1000 & echo $!; sleep 1000 & echo $!")
	c.Stdout = out
	p := start(t, r, c)
	wait(t, p)
	left := numbers(t, out, 2)
	if living := r.Living(); len(living) != 1 || !living[0].Background {
		t.Errorf("living: %+v, want one in the background", living)
	}
	if err := p.Signal(syscall.SIGUSR1); err != nil {
		t.Error(err)
	}
	testenv.Poll(t, "the signal has ended both", func() bool { return !alive(left[0]) && !alive(left[1]) })
	testenv.Poll(t, "the runner has detected the end", func() bool { return len(r.Living()) == 0 })
	if err := p.Signal(syscall.SIGUSR1); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("signal to an empty group: %v, want os.ErrProcessDone", err)
	}
}

func TestClaimIsProvenOrRefused(t *testing.T) {
	t.Parallel()
	table := []entry{
		{pid: 1, group: 1, session: 1, start: 1},
		{pid: 50, group: 50, session: 40, start: 100},
		{pid: 51, group: 50, session: 40, start: 300},
		{pid: 52, group: 50, session: 40, start: 90, zombie: true},
		{pid: 60, group: 60, session: 60, start: 200},
		{pid: 61, group: 61, session: 60, start: 250},
		{pid: 70, group: 70, session: 70, start: 300, zombie: true},
	}
	for _, c := range []struct {
		name  string
		claim claim
		want  []int
	}{
		{"leader not reaped", claim{number: 50}, []int{50, 51}},
		{"an old member vouches for the young", claim{number: 50, limit: 100}, []int{50, 51}},
		{"a zombie vouches too", claim{number: 50, limit: 95}, []int{50, 51}},
		{"all came later: the number was given away", claim{number: 50, limit: 80}, nil},
		{"group of a session", claim{number: 60, limit: 200}, []int{60}},
		{"whole session", claim{number: 60, session: true, limit: 200}, []int{60, 61}},
		{"foreign session", claim{number: 60, session: true, limit: 199}, nil},
		{"only zombies", claim{number: 70}, nil},
		{"nobody", claim{number: 80, limit: 1000}, nil},
	} {
		var got []int
		for _, e := range c.claim.members(table) {
			got = append(got, e.pid)
		}
		if len(got) != len(c.want) {
			t.Errorf("%s: got %v, want %v", c.name, got, c.want)
			continue
		}
		for i := range got {
			if got[i] != c.want[i] {
				t.Errorf("%s: got %v, want %v", c.name, got, c.want)
			}
		}
	}
}

func TestSignalSparesASuccessor(t *testing.T) {
	t.Parallel()
	r := newRunner(t, Config{})
	p := start(t, r, bash("exec sleep 1000"))
	e, ok := readEntry(p.PID())
	if !ok || e.group != p.PID() || e.parent != os.Getpid() {
		t.Fatalf("entry: %+v, %v, want group %v, parent %v", e, ok, p.PID(), os.Getpid())
	}
	before := e
	before.start--
	anyone := func(entry) bool { return true }
	if signalIfOwned(before, syscall.SIGKILL, anyone) {
		t.Error("a process with another start time was signaled")
	}
	if signalIfOwned(e, syscall.SIGKILL, func(entry) bool { return false }) {
		t.Error("an unmatched process was signaled")
	}
	if !signalIfOwned(e, syscall.SIGTERM, anyone) {
		t.Error("the process was not signaled")
	}
	if exit := wait(t, p); exit.Signal != syscall.SIGTERM {
		t.Errorf("got %v, want signal SIGTERM", exit)
	}
	if signalIfOwned(e, syscall.SIGKILL, anyone) {
		t.Error("a reaped process was signaled")
	}
}

func openTTY(t testing.TB) (master, slave *os.File) {
	t.Helper()
	master, slave, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		master.Close()
		slave.Close()
	})
	return master, slave
}

// TestStopEndsTheJobsOfATerminal: an interactive shell ignores TERM, and its jobs are separate groups.
func TestStopEndsTheJobsOfATerminal(t *testing.T) {
	t.Parallel()
	testenv.Need(t, "bash")
	r := newRunner(t, Config{})
	master, slave := openTTY(t)
	p := start(t, r, Command{Path: "bash", Args: []string{"--norc", "-i"}, TTY: slave})
	screen := NewCapture(1<<16, 0)
	slave.Close() // the terminal hangs up, and the reader ends, with the last process that has it
	var wg sync.WaitGroup
	defer wg.Wait()
	defer p.Kill()
	wg.Go(func() { readAll(master, screen) })
	if _, err := master.WriteString("sleep 1h & echo \"\n$!\n\"; (trap '' HUP TERM; sleep 2h & echo \"\n$!\n\"; wait) & \n"); err != nil {
		t.Fatal(err)
	}
	jobs := numbers(t, screen, 2)
	for _, job := range jobs {
		if e, ok := readEntry(job); !ok || e.session != p.PID() || e.group == p.PID() {
			t.Errorf("job %d: %+v, %v, want session %v, group other than %v", job, e, ok, p.PID(), p.PID())
		}
	}
	p.Stop()
	for _, pid := range append(jobs, p.PID()) {
		if alive(pid) {
			t.Errorf("process %d is running", pid)
		}
	}
}

func readAll(f *os.File, w *Capture) {
	buf := make([]byte, 1<<10)
	for {
		n, err := f.Read(buf)
		_, _ = w.Write(buf[:n])
		if err != nil {
			return
		}
	}
}

func TestCloseStopsEverythingAtOnce(t *testing.T) {
	t.Parallel()
	r := New(Config{Guard: guardArgv()})
	out := NewCapture(1<<10, 0)
	var procs []*Process
	for _, script := range []string{
		"exec sleep 1000",
		"trap '' TERM; while :; do sleep 1000; done",
		"sleep 1000 & echo $!",
		"setsid sleep 1000 & echo $!", // out of the group, but marked
		"setsid bash -c \"trap '' TERM; echo \\$\\$; while :; do sleep 1000; done\" &",
	} {
		c := bash(script)
		c.Stdout, c.Grace = out, 300*1e6
		procs = append(procs, start(t, r, c))
	}
	pids := numbers(t, out, 3)
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			if err := r.Close(); err != nil {
				t.Error(err)
			}
			for _, p := range procs {
				pids := append(pids[:len(pids):len(pids)], p.PID())
				for _, pid := range pids {
					if alive(pid) {
						t.Errorf("process %d is running", pid)
					}
				}
			}
		})
	}
	wg.Wait()
	if _, err := r.Start(bash("true")); !errors.Is(err, ErrClosed) {
		t.Errorf("start afterwards: %v, want %v", err, ErrClosed)
	}
	if err := New(Config{Guard: guardArgv()}).Close(); err != nil {
		t.Errorf("close without a start: %v", err)
	}
}

func TestManyAtATime(t *testing.T) {
	t.Parallel()
	r := newRunner(t, Config{Guard: guardArgv()})
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			c := bash("echo ready; sleep 1000 & wait")
			out := NewCapture(100, 0)
			c.Stdout = out
			p, err := r.Start(c)
			if err != nil {
				t.Error(err)
				return
			}
			switch i % 3 {
			case 0:
				p.Stop()
			case 1:
				p.Kill()
			default:
				testenv.Poll(t, "output", func() bool { return out.Total() > 0 })
				wg.Go(func() { p.Stop() })
				p.Kill()
			}
			if alive(p.PID()) {
				t.Errorf("process %d is running", p.PID())
			}
		})
	}
	wg.Wait()
	if living := r.Living(); len(living) != 0 {
		t.Errorf("living: %v, want no living", living)
	}
}

// TestEndedBackgroundWorkIsRemoved: commands whose background work has ended must be removed,
// although the kernel does not report empty groups.
func TestEndedBackgroundWorkIsRemoved(t *testing.T) {
	t.Parallel()
	r := newRunner(t, Config{})
	fifo := mkfifo(t)
	// Held open for both, so that the readers below neither block in open nor see an end.
	gate, err := os.OpenFile(fifo, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer gate.Close()
	for range firstSweep - 1 {
		if _, err := r.Run(t.Context(), bash("read <$1 & :", fifo)); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(r.Living()); n != firstSweep-1 {
		t.Errorf("%d living, want %v", n, firstSweep-1)
	}
	if _, err := gate.WriteString(strings.Repeat("\n", firstSweep)); err != nil {
		t.Fatal(err)
	}
	testenv.Poll(t, "a later start has swept", func() bool {
		if _, err := r.Run(t.Context(), Command{Path: "/bin/true"}); err != nil {
			t.Fatal(err)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.procs) <= 1
	})
}

// The parent-death signal follows the thread that forked. Threads of goroutines
// that exit while locked end, and must not take a child with them.
func TestChildSurvivesTheThreadOfItsCaller(t *testing.T) {
	t.Parallel()
	r := newRunner(t, Config{})
	var p *Process
	tid := os.Getpid()
	for tid == os.Getpid() { // the first thread of a program never ends
		started := make(chan error)
		go func() {
			runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
			tid = unix.Gettid()
			var err error
			if tid == os.Getpid() {
				runtime.UnlockOSThread()
			} else {
				p, err = r.Start(bash("exec sleep 1000"))
			}
			started <- err
		}()
		if err := <-started; err != nil {
			t.Fatal(err)
		}
	}
	testenv.Poll(t, "the thread has ended", func() bool {
		_, err := os.Stat("/proc/self/task/" + strconv.Itoa(tid))
		return os.IsNotExist(err)
	})
	if err := p.Signal(syscall.SIGUSR1); err != nil {
		t.Error(err)
	}
	if exit := wait(t, p); exit.Signal != syscall.SIGUSR1 {
		t.Errorf("it %v, want signal SIGUSR1", exit)
	}
}

func TestExtraFiles(t *testing.T) {
	t.Parallel()
	r := newRunner(t, Config{})
	pr, pw, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer pr.Close()
	c := bash("echo three >&3")
	c.ExtraFiles = []*os.File{pw}
	_, err = r.Run(t.Context(), c)
	pw.Close()
	if err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 10)
	if n, _ := pr.Read(buf); string(buf[:n]) != "three\n" {
		t.Errorf("got %q, want %q", buf[:n], "three\n")
	}
}

// FuzzParseStat: the name of a process is its own choice and must not move the
// fields behind it.
func FuzzParseStat(f *testing.F) {
	f.Add([]byte("bash"))
	f.Add([]byte("a) b) (c"))
	f.Add([]byte(") Z 9 9 9 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 9"))
	f.Add([]byte("\n"))
	f.Fuzz(func(t *testing.T, name []byte) {
		line := "42 (" + string(name) + ") S 1 2 3 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 777 0 0"
		want := entry{pid: 42, parent: 1, group: 2, session: 3, start: 777}
		if e, ok := parseStat([]byte(line)); !ok || e != want {
			t.Errorf("got %+v, %v, want e %v", e, ok, want)
		}
		parseStat(name)
	})
}

func TestParseStat(t *testing.T) {
	t.Parallel()
	e, ok := parseStat([]byte("42 (a) b) (c) Z 1 2 3 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 777 0 0"))
	if want := (entry{pid: 42, parent: 1, group: 2, session: 3, zombie: true, start: 777}); !ok || e != want {
		t.Errorf("got %+v, %v, want e %v", e, ok, want)
	}
}
