package isolate

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Record identifies a sandbox's init for a later process of the hub. The start
// time and the boot ID distinguish it from another process with the same PID.
type Record struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"`
	Boot  string `json:"boot"`
	// Inner is the PID of the program inside.
	Inner int `json:"inner,omitempty"`
}

// Handle refers to the init process of a sandbox. Closing it ends nothing.
type Handle struct {
	rec   Record
	pidfd *os.File
	done  chan struct{}
	once  sync.Once
	quit  chan struct{} // closed when the watching goroutine has ended
}

// ErrGone means that the process of a Record has ended.
var ErrGone = errors.New("the sandbox's init has ended")

// newHandle takes ownership of the pidfd.
func newHandle(pid, pidfd int) (*Handle, error) {
	start, state, err := startTime(pid)
	if err == nil && state == 'Z' {
		unix.Waitid(unix.P_PIDFD, pidfd, nil, unix.WEXITED|unix.WNOHANG, nil) // if it is a child of this process
		err = ErrGone
	}
	var boot string
	if err == nil {
		boot, err = bootID()
	}
	if err == nil {
		err = unix.SetNonblock(pidfd, true) // so that Go's poller waits for it
	}
	if err != nil {
		unix.Close(pidfd)
		return nil, err
	}
	h := &Handle{rec: Record{PID: pid, Start: start, Boot: boot}, pidfd: os.NewFile(uintptr(pidfd), "pidfd"),
		done: make(chan struct{}), quit: make(chan struct{})}
	go h.watch()
	return h, nil
}

// Adopt finds the init of a sandbox that another process started.
func Adopt(rec Record) (*Handle, error) {
	boot, err := bootID()
	if err != nil {
		return nil, err
	}
	if rec.PID <= 0 || rec.Boot != boot {
		return nil, ErrGone
	}
	pidfd, err := unix.PidfdOpen(rec.PID, 0)
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) {
		return nil, ErrGone
	}
	if err != nil {
		return nil, fmt.Errorf("open process %d: %w", rec.PID, err)
	}
	// The start time is read after the pidfd is opened: if it matches, the pidfd refers to the right process.
	h, err := newHandle(rec.PID, pidfd)
	if err != nil {
		return nil, err
	}
	if h.rec.Start != rec.Start {
		h.Close()
		return nil, ErrGone
	}
	h.rec.Inner = rec.Inner
	return h, nil
}

// startTime returns when the process began, in clock ticks since boot, and its state.
func startTime(pid int) (start uint64, state byte, err error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return 0, 0, ErrGone
	}
	if err != nil {
		return 0, 0, err
	}
	// The name may contain spaces and brackets: fields are counted from the last bracket.
	f := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(f) < 20 {
		return 0, 0, fmt.Errorf("cannot read the start time of process %d", pid)
	}
	start, err = strconv.ParseUint(f[19], 10, 64)
	return start, f[0][0], err
}

var bootID = sync.OnceValues(func() (string, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(id)), err
})

// watch waits for the process to end and reaps it if it is a child.
func (h *Handle) watch() {
	defer close(h.quit)
	raw, err := h.pidfd.SyscallConn()
	if err != nil {
		return
	}
	err = raw.Read(func(fd uintptr) bool {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(p, 0)
		if n != 1 || err != nil {
			return false
		}
		unix.Waitid(unix.P_PIDFD, int(fd), nil, unix.WEXITED|unix.WNOHANG, nil)
		return true
	})
	if err == nil {
		close(h.done)
	}
}

// Record returns what Adopt needs.
func (h *Handle) Record() Record { return h.rec }

// Done is closed when init, and with it every process inside, has ended. If the Handle is closed
// before, Done stays open.
func (h *Handle) Done() <-chan struct{} { return h.done }

// Terminate asks the program to end.
func (h *Handle) Terminate() error { return h.signal(unix.SIGTERM) }

// Kill ends all processes inside.
func (h *Handle) Kill() error { return h.signal(unix.SIGKILL) }

func (h *Handle) signal(sig unix.Signal) error {
	raw, err := h.pidfd.SyscallConn()
	if err != nil {
		return err
	}
	var sent error
	if err := raw.Control(func(fd uintptr) { sent = unix.PidfdSendSignal(int(fd), sig, nil, 0) }); err != nil {
		return err
	}
	if errors.Is(sent, unix.ESRCH) {
		return nil // the process has ended
	}
	return sent
}

// Close releases the process.
func (h *Handle) Close() error {
	h.once.Do(func() {
		h.pidfd.Close()
		<-h.quit
	})
	return nil
}

// Has reports whether a process, by its PID outside the sandbox, is the init of the record or its program.
func (r Record) Has(pid int) bool { return pid == r.PID || r.Inner > 0 && insidePID(pid) == r.Inner }

// insidePID returns the PID of a process in the sandbox's namespace: the first below the
// caller's. In namespaces below that, a process can choose its PID.
func insidePID(pid int) int {
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(status)) {
		if ids, ok := strings.CutPrefix(line, "NSpid:"); ok {
			if f := strings.Fields(ids); len(f) > 1 {
				n, _ := strconv.Atoi(f[1])
				return n
			}
		}
	}
	return 0
}
