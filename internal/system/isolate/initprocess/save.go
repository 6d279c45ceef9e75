package initprocess

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/system/disposition"
	"github.com/cove-sandbox/cove/internal/system/isolate/gvisor"
)

// save has gVisor write the program to a folder, and ends the program.
func (i *initProcess) save(folder int) error {
	// The program is paused meanwhile, and until it is killed: otherwise it could change files
	// after its memory was saved. Without --leave-running gVisor would kill the program, but
	// also after an error.
	if err := i.runVerb(nil, "pause"); err != nil {
		return err
	}
	const inherited = 3 // the descriptor of the folder in the command
	err := i.runVerb([]uintptr{uintptr(folder)}, "checkpoint", "--leave-running", "--exclude-committed-zero-pages",
		fmt.Sprintf("--image-path=/proc/self/fd/%d", inherited))
	if err != nil {
		return errors.Join(err, i.runVerb(nil, "resume"))
	}
	i.helpers.markSaved()
	return syscall.Kill(i.pid, unix.SIGKILL)
}

// maxOutput bounds what is read of a failed command's output.
const maxOutput = 400

// runVerb runs a command of gVisor with additional files. If it fails, the error is its first line of output.
func (i *initProcess) runVerb(files []uintptr, verb string, args ...string) error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	defer w.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		return err
	}
	defer null.Close()
	ended, err := i.helpers.start(gvisor.Command(verb, args...), append([]uintptr{null.Fd(), w.Fd(), w.Fd()}, files...))
	if err != nil {
		return err
	}
	w.Close()
	output, _ := io.ReadAll(io.LimitReader(r, maxOutput))
	go io.Copy(io.Discard, r)
	if status := <-ended; status.ExitStatus() != 0 {
		line, _, _ := strings.Cut(string(output), "\n")
		return fmt.Errorf("%s: %s", verb, strings.TrimSpace(line))
	}
	return nil
}

// helpers are the processes that init starts besides the program. One loop reaps all
// children of init.
type helpers struct {
	mu    sync.Mutex
	ended map[int]chan syscall.WaitStatus
	saved bool // the program was saved, and is about to end
}

// start runs a program and returns a channel that receives its status.
func (h *helpers) start(args []string, files []uintptr) (<-chan syscall.WaitStatus, error) {
	h.mu.Lock() // it may end before its PID is known
	defer h.mu.Unlock()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := disposition.Reset(); err != nil {
		return nil, err
	}
	pid, err := syscall.ForkExec(args[0], args, &syscall.ProcAttr{Dir: "/", Env: []string{"PATH=/usr/bin:/bin"}, Files: files})
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", args[0], err)
	}
	ended := make(chan syscall.WaitStatus, 1)
	if h.ended == nil {
		h.ended = map[int]chan syscall.WaitStatus{}
	}
	h.ended[pid] = ended
	return ended, nil
}

// markEnded notes that a child has been reaped.
func (h *helpers) markEnded(pid int, status syscall.WaitStatus) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if ended := h.ended[pid]; ended != nil {
		ended <- status
		delete(h.ended, pid)
	}
}

func (h *helpers) markSaved() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.saved = true
}

// wasSaved reports whether the program was saved.
func (h *helpers) wasSaved() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.saved
}

// wait waits for the helpers that still run when the program has ended.
func (h *helpers) wait() {
	for h.count() > 0 {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		if err == nil {
			h.markEnded(pid, status)
		} else if err != syscall.EINTR {
			break
		}
	}
}

func (h *helpers) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.ended)
}
