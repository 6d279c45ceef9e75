package proc

import (
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

func bashPath(b *testing.B) string {
	b.Helper()
	testenv.Need(b, "bash")
	path, _ := New(Config{}).Look("bash")
	return path
}

// BenchmarkSpawnRaw starts a shell without this package, as the baseline.
func BenchmarkSpawnRaw(b *testing.B) {
	path := bashPath(b)
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		b.Fatal(err)
	}
	defer null.Close()
	attr := &syscall.ProcAttr{Env: []string{"PATH=" + defaultPath}, Files: []uintptr{null.Fd(), null.Fd(), null.Fd()}}
	for b.Loop() {
		pid, err := syscall.ForkExec(path, []string{"bash", "-c", "true"}, attr)
		if err != nil {
			b.Fatal(err)
		}
		collect(pid)
	}
}

func BenchmarkSpawnOSExec(b *testing.B) {
	path := bashPath(b)
	for b.Loop() {
		cmd := exec.Command(path, "-c", "true")
		cmd.Env = []string{"PATH=" + defaultPath}
		if err := cmd.Run(); err != nil {
			b.Fatal(err)
		}
	}
}

func benchmarkRun(b *testing.B, cfg Config, c Command) {
	r := newRunner(b, cfg)
	for b.Loop() {
		if res, err := r.Run(b.Context(), c); err != nil || res.Exit.Code != 0 {
			b.Fatalf("it %v, %v, want code 0", res.Exit, err)
		}
	}
}

func BenchmarkRunCaptured(b *testing.B) { benchmarkRun(b, Config{}, bash("true")) }

func BenchmarkRunGuarded(b *testing.B) {
	benchmarkRun(b, Config{Guard: guardArgv()}, bash("true"))
}

func BenchmarkRunNull(b *testing.B) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		b.Fatal(err)
	}
	defer null.Close()
	c := bash("true")
	c.Stdout, c.Stderr = null, null
	benchmarkRun(b, Config{}, c)
}
