package proc

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"
)

const (
	// suspendTimeout bounds the wait until processes stop: a thread in a system call stops when that ends.
	suspendTimeout = 10 * time.Second
	// waitTimeout is the time after which a thread that waits in the kernel counts as stopped: it may wait
	// for a child that was stopped before its exec.
	waitTimeout = 2 * time.Second
)

// SuspendOthers stops all other processes of a PID namespace, in which this process must be PID 1, and returns when
// all are stopped. Resume continues those that ran before; it may be called more than once.
func SuspendOthers() (resume func(), err error) {
	if os.Getpid() != 1 {
		return nil, errors.New("suspend the processes of a container: not its first process")
	}
	before, err := processes()
	if err != nil {
		return nil, fmt.Errorf("suspend processes: %w", err)
	}
	stopped := map[int]uint64{} // stopped before, so not to be resumed
	for _, e := range before {
		if e.pid != 1 && !e.zombie && halted(e.pid, "") {
			stopped[e.pid] = e.start
		}
	}
	resume = sync.OnceFunc(func() { resumeOthers(stopped) })
	// One call for all processes, so that no fork can escape it.
	if err := syscall.Kill(-1, syscall.SIGSTOP); err != nil && !errors.Is(err, syscall.ESRCH) {
		return nil, fmt.Errorf("suspend processes: %w", err)
	}
	for began, also := time.Now(), ""; ; time.Sleep(pollPause) {
		if time.Since(began) > waitTimeout {
			also = "D"
		}
		table, err := processes()
		if err == nil && !slices.ContainsFunc(table, func(e entry) bool { return e.pid != 1 && !halted(e.pid, also) }) {
			return resume, nil
		}
		if err == nil && time.Since(began) > suspendTimeout {
			err = fmt.Errorf("some processes did not stop in %v", suspendTimeout)
		}
		if err != nil {
			resume()
			return nil, fmt.Errorf("suspend processes: %w", err)
		}
	}
}

// resumeOthers continues processes, children before their parents: a shell must not detect stopped jobs.
func resumeOthers(except map[int]uint64) {
	table, err := processes()
	if err != nil {
		_ = syscall.Kill(-1, syscall.SIGCONT)
		return
	}
	depth := map[int]int{1: 0}
	for grown := true; grown; {
		grown = false
		for _, e := range table {
			if above, ok := depth[e.parent]; ok && e.pid != 1 && depth[e.pid] == 0 {
				depth[e.pid], grown = above+1, true
			}
		}
	}
	slices.SortFunc(table, func(a, b entry) int { return cmp.Compare(depth[b.pid], depth[a.pid]) })
	for _, e := range table {
		if start, was := except[e.pid]; e.pid != 1 && !(was && start == e.start) {
			_ = syscall.Kill(e.pid, syscall.SIGCONT)
		}
	}
}

// halted reports whether all threads of a process are stopped or ended, or in one of the states in also.
func halted(pid int, also string) bool {
	dir := fmt.Sprintf("/proc/%d/task", pid)
	threads, err := os.ReadDir(dir)
	if err != nil {
		return true // it has ended
	}
	for _, t := range threads {
		line, err := os.ReadFile(dir + "/" + t.Name() + "/stat")
		if err != nil {
			continue
		}
		if fields := bytes.Fields(line[bytes.LastIndexByte(line, ')')+1:]); len(fields) > 0 && !bytes.Contains([]byte("TtZXx"+also), fields[0]) {
			return false
		}
	}
	return true
}
