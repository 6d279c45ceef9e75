package proc

import (
	"log/slog"
	"runtime"
	"sync"
	"syscall"

	"github.com/cove-sandbox/cove/internal/system/disposition"
)

// forker forks on one thread that lives as long as the runner.
//
// The parent-death signal is tied to the thread that forked, not to the
// process: a child forked on a thread that the Go runtime ends later (which it
// does when a goroutine exits while locked to it) would be killed without a
// reason. This thread ends only after all children. It costs about 1 % of a
// spawn, and forks exclude each other anyway.
type forker struct {
	start sync.Once
	jobs  chan forkJob
	log   *slog.Logger
}

type forkJob struct {
	path   string
	argv   []string
	attr   *syscall.ProcAttr
	result chan forkResult
}

type forkResult struct {
	pid int
	err error
}

// fork starts a program. The caller ensures that close does not run meanwhile.
func (f *forker) fork(path string, argv []string, attr *syscall.ProcAttr) (int, error) {
	f.start.Do(func() {
		f.jobs = make(chan forkJob)
		go f.loop(f.jobs)
	})
	result := make(chan forkResult, 1)
	f.jobs <- forkJob{path, argv, attr, result}
	forked := <-result
	return forked.pid, forked.err
}

func (f *forker) loop(jobs <-chan forkJob) {
	runtime.LockOSThread()
	// Unlocked, the thread returns to the runtime and lives until the program ends.
	defer runtime.UnlockOSThread()
	if err := disposition.Reset(); err != nil {
		f.log.Warn("programs may inherit blocked signals", "error", err)
	}
	for job := range jobs {
		pid, err := syscall.ForkExec(job.path, job.argv, job.attr)
		job.result <- forkResult{pid, err}
	}
}

func (f *forker) close() {
	f.start.Do(func() {})
	if f.jobs != nil {
		close(f.jobs)
	}
}
