package testenv

import (
	"bytes"
	"flag"
	"fmt"
	"net/http"
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

// settle is how long a finished run may take to release its resources, on a busy machine.
const settle = 30 * time.Second

// Main runs the tests of a package and exits. A run fails if it leaves a goroutine, a
// child process (even a zombie) or a file descriptor. Call it from TestMain; opts
// name goroutines to ignore.
func Main(m *testing.M, opts ...goleak.Option) {
	warmPoller()
	closeIdle := keepIdle()
	before := openFiles()
	code := m.Run()
	closeIdle()
	// A fuzzing run has its own workers and signal handlers.
	fuzz := flag.Lookup("test.fuzz")
	if code == 0 && (fuzz == nil || fuzz.Value.String() == "") {
		if left := settled(func() string { return leaks(before, opts) }); left != "" {
			fmt.Fprintf(os.Stderr, "the tests passed but left behind:\n%s", left)
			code = 1
		}
	}
	os.Exit(code)
}

// settled waits until nothing is left, and returns what is left after all.
func settled(leaks func() string) string {
	for deadline := time.Now().Add(settle); ; time.Sleep(10 * time.Millisecond) {
		if left := leaks(); left == "" || time.Now().After(deadline) {
			return left
		}
		runtime.GC() // closes the pipes of spliced connections
	}
}

// leaks describes what is left.
func leaks(before []string, opts []goleak.Option) string {
	var left strings.Builder
	if err := goleak.Find(opts...); err != nil {
		fmt.Fprintf(&left, "goroutines: %v\n", err)
	}
	for _, c := range childProcesses(os.Getpid()) {
		fmt.Fprintf(&left, "child process: %s\n", c)
	}
	for _, f := range newFiles(before) {
		fmt.Fprintf(&left, "file descriptor: %s\n", f)
	}
	return left.String()
}

// keepIdle lets no test close the idle connections of http.DefaultTransport: it would break
// the requests of concurrent tests, and httptest.Server.Close does it. The result closes them.
func keepIdle() func() {
	shared, ok := http.DefaultTransport.(*http.Transport)
	if !ok {
		return func() {}
	}
	http.DefaultTransport = struct{ http.RoundTripper }{shared}
	return shared.CloseIdleConnections
}

// warmPoller makes the runtime open the descriptors of its poller, which stay open.
func warmPoller() {
	r, w, err := os.Pipe()
	if err != nil {
		return
	}
	r.Close()
	w.Close()
}

// openFiles lists the descriptors of this process as "number target".
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
			return nets <= 2 // package isolate keeps two: the host's and an empty one
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
		// The command name may contain parentheses: fields start after the last one.
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

// ProcessesOf describes the processes, other than this one, whose command line
// contains a folder.
func ProcessesOf(dir string) []string {
	var found []string
	all, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range all {
		line, err := os.ReadFile(path)
		pid := filepath.Base(filepath.Dir(path))
		if err == nil && bytes.Contains(line, []byte(dir)) && pid != strconv.Itoa(os.Getpid()) {
			found = append(found, pid+" "+string(bytes.ReplaceAll(line, []byte{0}, []byte(" "))))
		}
	}
	return found
}
