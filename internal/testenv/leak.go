package testenv

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// settle is how long a finished run may take to give back what it used.
const settle = 5 * time.Second

// Main runs the tests of a package and exits. A run that passes but leaves a
// goroutine, a child process (zombies too) or a file descriptor fails. Call it
// from TestMain; opts name goroutines that may stay.
func Main(m *testing.M, opts ...goleak.Option) {
	warmPoller()
	before := openFiles()
	code := m.Run()
	// A fuzzing run keeps workers and signal handlers that are not the tests'.
	fuzz := flag.Lookup("test.fuzz")
	if code == 0 && (fuzz == nil || fuzz.Value.String() == "") {
		if left := leaks(before, opts); left != "" {
			fmt.Fprintf(os.Stderr, "the tests passed but left behind:\n%s", left)
			code = 1
		}
	}
	os.Exit(code)
}

// leaks gives everything a moment to end and describes what did not.
func leaks(before []string, opts []goleak.Option) string {
	var left strings.Builder
	if err := goleak.Find(opts...); err != nil {
		fmt.Fprintf(&left, "goroutines: %v\n", err)
	}
	deadline := time.Now().Add(settle)
	for {
		children, files := childProcesses(os.Getpid()), newFiles(before)
		if len(children)+len(files) == 0 {
			break
		}
		if time.Now().After(deadline) {
			for _, c := range children {
				fmt.Fprintf(&left, "child process: %s\n", c)
			}
			for _, f := range files {
				fmt.Fprintf(&left, "file descriptor: %s\n", f)
			}
			break
		}
		runtime.GC() // returns the pipes of connections that the kernel copied for us
		time.Sleep(10 * time.Millisecond)
	}
	return left.String()
}

// warmPoller makes the runtime open the descriptors of its poller, which it
// opens on first need and keeps.
func warmPoller() {
	r, w, err := os.Pipe()
	if err != nil {
		return
	}
	r.Close()
	w.Close()
}

// openFiles lists this process's descriptors as "number target".
func openFiles() []string {
	const dir = "/proc/self/fd"
	d, err := os.Open(dir)
	if err != nil {
		return nil
	}
	defer d.Close()
	names, _ := d.Readdirnames(-1)
	var files []string
	for _, name := range names {
		if name == strconv.Itoa(int(d.Fd())) {
			continue
		}
		if target, err := os.Readlink(filepath.Join(dir, name)); err == nil {
			files = append(files, name+" "+target)
		}
	}
	return files
}

func newFiles(before []string) []string {
	nets := 0
	return slices.DeleteFunc(openFiles(), func(f string) bool {
		if strings.Contains(f, " net:[") {
			nets++
			return nets <= 2 // package isolate keeps two, the host's and an empty one, once for all
		}
		return slices.Contains(before, f)
	})
}

// childProcesses describes the children of a process, zombies included.
func childProcesses(parent int) []string {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	var children []string
	for _, path := range stats {
		stat, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		// The command name may hold spaces and parentheses: fields start after the last one.
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		if len(fields) < 2 || fields[1] != strconv.Itoa(parent) {
			continue
		}
		dir := filepath.Dir(path)
		cmd, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
		if len(cmd) == 0 {
			cmd, _ = os.ReadFile(filepath.Join(dir, "comm"))
		}
		children = append(children, fmt.Sprintf("%s state %s %q", filepath.Base(dir), fields[0],
			strings.TrimSpace(strings.ReplaceAll(string(cmd), "\x00", " "))))
	}
	return children
}
