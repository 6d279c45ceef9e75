package proc

import (
	"bufio"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// playInit runs argv below Init, as the user with that number unless it is "-".
func playInit(uid string, argv []string) int {
	cfg := InitConfig{Argv: argv, Env: []string{"PATH=" + defaultPath}, Grace: 300 * 1e6}
	if id, err := strconv.Atoi(uid); err == nil {
		cfg.User = &User{UID: uint32(id), GID: uint32(id)}
	}
	return Init(cfg)
}

// inits are the two ways to be a parent of orphans.
var inits = []struct {
	name string
	attr *syscall.SysProcAttr
}{
	{"subreaper", &syscall.SysProcAttr{}},
	{"pid 1", &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}},
}

func forInits(t *testing.T, test func(t *testing.T, attr *syscall.SysProcAttr)) {
	t.Parallel()
	testenv.Need(t, "bash", "setsid")
	for _, kind := range inits {
		t.Run(kind.name, func(t *testing.T) {
			t.Parallel()
			if kind.attr.Cloneflags != 0 {
				testenv.NeedRoot(t)
			}
			test(t, kind.attr)
		})
	}
}

func initOf(attr *syscall.SysProcAttr, uid, script string) *exec.Cmd {
	cmd := self("init", uid, "/usr/bin/env", "bash", "-c", script)
	cmd.SysProcAttr = attr
	return cmd
}

func TestInitReturnsTheCodeOfTheServer(t *testing.T) {
	forInits(t, func(t *testing.T, attr *syscall.SysProcAttr) {
		for _, c := range []struct {
			script string
			code   int
		}{
			{"exit 0", 0},
			{"exit 42", 42},
			{"kill -KILL $$", 137},
		} {
			cmd := initOf(attr, "-", c.script)
			_ = cmd.Run()
			if got := cmd.ProcessState.ExitCode(); got != c.code {
				t.Errorf("%s: code %d, want %v", c.script, got, c.code)
			}
		}
		cmd := self("init", "-", "/no/such/server")
		cmd.SysProcAttr = attr
		_ = cmd.Run()
		if got := cmd.ProcessState.ExitCode(); got != cannotStart {
			t.Errorf("no server: code %d, want %v", got, cannotStart)
		}
	})
}

func TestInitForwardsSignals(t *testing.T) {
	forInits(t, func(t *testing.T, attr *syscall.SysProcAttr) {
		for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGUSR1, syscall.SIGUSR2} {
			cmd := initOf(attr, "-", fmt.Sprintf("trap 'exit 9' %d; echo up; while :; do sleep 0.01; done", int(sig)))
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
				t.Errorf("got line %q, %v", line, err)
			}
			if err := cmd.Process.Signal(sig); err != nil {
				t.Error(err)
			}
			_ = cmd.Wait()
			if got := cmd.ProcessState.ExitCode(); got != 9 {
				t.Errorf("%v: code %d, want 9", sig, got)
			}
		}
	})
}

// below lists the children of pid, including zombies.
func below(t *testing.T, pid int) (living, zombies []int) {
	t.Helper()
	table, err := processes()
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range table {
		switch {
		case e.parent != pid:
		case e.zombie:
			zombies = append(zombies, e.pid)
		default:
			living = append(living, e.pid)
		}
	}
	return living, zombies
}

func TestInitReapsOrphansAndEndsTheRest(t *testing.T) {
	forInits(t, func(t *testing.T, attr *syscall.SysProcAttr) {
		// Ten orphans that end at once, and one that ignores TERM.
		cmd := initOf(attr, "-", `
			for i in 1 2 3 4 5 6 7 8 9 10; do bash -c 'sleep 0 &'; done
			bash -c 'setsid bash -c "trap \"\" TERM; echo; while :; do sleep 1h; done" &'
			read; exit 4`)
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
			t.Errorf("the process that ignores TERM printed nothing: %v", err)
		}
		pid := cmd.Process.Pid
		testenv.Poll(t, "only the server and the orphan that ignores signals are left", func() bool {
			living, zombies := below(t, pid)
			return len(living) == 2 && len(zombies) == 0
		})
		living, _ := below(t, pid)
		if _, err := io.WriteString(in, "\n"); err != nil {
			t.Error(err)
		}
		_ = cmd.Wait()
		if got := cmd.ProcessState.ExitCode(); got != 4 {
			t.Errorf("code %d, want 4", got)
		}
		for _, pid := range living {
			if alive(pid) {
				t.Errorf("process %d is running", pid)
			}
		}
	})
}

func TestKilledInitEndsTheServer(t *testing.T) {
	forInits(t, func(t *testing.T, attr *syscall.SysProcAttr) {
		cmd := initOf(attr, "-", "echo up; exec sleep 1h")
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
			t.Error(err)
		}
		living, _ := below(t, cmd.Process.Pid)
		if len(living) != 1 {
			t.Errorf("below it: %v, want 1 process", living)
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Error(err)
		}
		_ = cmd.Wait()
		for _, pid := range living {
			testenv.Poll(t, "end of the server", func() bool { return !alive(pid) })
		}
	})
}

func TestInitDropsRoot(t *testing.T) {
	testenv.NeedRoot(t)
	forInits(t, func(t *testing.T, attr *syscall.SysProcAttr) {
		out, err := initOf(attr, "4242", "echo $(id -u) $(id -g) $(id -G)").Output()
		if got := strings.TrimSpace(string(out)); err != nil || got != "4242 4242 4242" {
			t.Errorf("got %q, %v, want \"4242 4242 4242\"", got, err)
		}
	})
}
