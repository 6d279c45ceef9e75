package main

import (
	"bufio"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// TestKilledRunLeavesNothing kills a run with real sandboxes at random moments.
func TestKilledRunLeavesNothing(t *testing.T) {
	testenv.NeedRoot(t)
	testenv.Long(t)
	lane := filepath.Join(t.TempDir(), "lane")
	testenv.Build(t, map[string]string{lane: "."})
	goCache, err := exec.Command("go", "env", "GOCACHE").Output()
	if err != nil {
		t.Fatal(err)
	}
	for range testenv.Times(2, 10) {
		cache := t.TempDir()
		mounts := count(t, "/proc/self/mountinfo")
		cmd := exec.Command(lane, "-run", "TestProvider$", "-v", "test", "./internal/provider/local")
		cmd.Dir = "../.."
		cmd.Env = append(os.Environ(), "XDG_CACHE_HOME="+cache, "GOCACHE="+strings.TrimSpace(string(goCache)), runEnv+"=")
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		var run string
		testenv.Poll(t, "the run has a folder", func() bool {
			found, _ := filepath.Glob(cache + "/cove/runs/*")
			run = strings.Join(found, "")
			return run != ""
		})
		after := time.Duration(rand.IntN(20)) * time.Second
		timer := time.NewTimer(after)
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		select {
		case err := <-ended:
			t.Fatalf("the run ended before it was killed: %v", err)
		case <-timer.C:
		}
		if err := syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		<-ended
		testenv.Poll(t, "nothing is left of a run killed after "+after.String(), func() bool {
			groups, _ := filepath.Glob("/sys/fs/cgroup/cove-run-" + filepath.Base(run))
			others, _ := filepath.Glob("/sys/fs/cgroup/*/cove-run-" + filepath.Base(run))
			files, _ := filepath.Glob(cache + "/cove/runs/*")
			return len(groups)+len(others)+len(files) == 0 && len(marked(run)) == 0 && count(t, "/proc/self/mountinfo") == mounts
		})
	}
}

// marked lists the processes of a run.
func marked(run string) (processes []string) {
	environs, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, path := range environs {
		if env, err := os.ReadFile(path); err == nil && strings.Contains(string(env), runEnv+"="+run) {
			processes = append(processes, path)
		}
	}
	return processes
}

func count(t *testing.T, path string) (lines int) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		lines++
	}
	return lines
}
