package proc

import (
	"encoding/binary"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// markName is the environment variable that marks the runner's processes.
const markName = "AIO_GUARD"

// goodbye tells the guard to exit without killing anything.
const goodbye = "bye\n"

const (
	// guardShort is a run so short that the guard cannot have worked.
	guardShort = time.Second
	// guardTries is the number of consecutive short runs after which it is not
	// restarted.
	guardTries = 3
	// daemonGrace is how long Close waits for marked daemons between TERM and KILL.
	daemonGrace = time.Second
	// guardGrace is how long Close waits for the guard after goodbye.
	guardGrace = 3 * time.Second
	// slotSize is a group's number and its limit, see claim.
	slotSize = 16
)

// guard is the runner's side of the guard process, which kills all processes that the
// runner started if this program is killed.
//
// The two share a pipe, whose end means that this program has ended,
// and a memory file with the numbers of its process groups. Registering a group
// costs one system call and wakes no process.
type guard struct {
	argv   []string
	nonce  string
	log    *slog.Logger
	forks  *forker
	revive func()

	mu     sync.Mutex
	closed bool
	lease  *os.File // the runner's end of the pipe; nil without a guard
	pid    int
	ended  chan struct{}
	short  int // consecutive short runs
	table  *os.File
	slots  int
	free   []int
}

// marked returns env with the mark. It replaces the mark of an outer runner: that
// runner's guard ends this program, and this runner's guard ends its children.
func (g *guard) marked(env []string) []string {
	out := make([]string, 0, len(env)+1)
	out = append(out, markName+"="+g.nonce)
	for _, entry := range env {
		if !strings.HasPrefix(entry, markName+"=") {
			out = append(out, entry)
		}
	}
	return out
}

// ensureRunning starts the guard unless it runs. Without a guard, the parent-death
// signal still ends children, so a failure is only logged.
func (g *guard) ensureRunning() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.lease != nil || g.closed || g.short >= guardTries {
		return
	}
	if err := g.start(); err != nil {
		g.short = guardTries
		g.log.Error("guard failed to start, daemons may outlive a killed server", "error", err)
	}
}

func (g *guard) start() error {
	if g.table == nil {
		fd, err := unix.MemfdCreate("guard", unix.MFD_CLOEXEC)
		if err != nil {
			return fmt.Errorf("create guard table: %w", err)
		}
		g.table = os.NewFile(uintptr(fd), "guard")
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	var pipe [2]int
	if err := syscall.Pipe2(pipe[:], syscall.O_CLOEXEC); err != nil {
		return fmt.Errorf("open pipe: %w", err)
	}
	defer syscall.Close(pipe[0])
	lease := os.NewFile(uintptr(pipe[1]), "lease")
	if _, err := lease.WriteString(g.nonce + "\n"); err != nil {
		lease.Close()
		return fmt.Errorf("write to guard: %w", err)
	}
	// Its own session, so that it gets no signals of the runner's group or terminal, and no
	// environment, so that no guard considers it a child.
	pid, err := g.forks.fork(g.argv[0], g.argv, &syscall.ProcAttr{
		Dir:   "/",
		Files: []uintptr{uintptr(pipe[0]), null.Fd(), null.Fd(), g.table.Fd()},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		lease.Close()
		return fmt.Errorf("start %s: %w", g.argv[0], err)
	}
	g.lease, g.pid, g.ended = lease, pid, make(chan struct{})
	go g.watch(pid, time.Now(), g.ended)
	return nil
}

// watch waits for the guard and replaces it when it ends.
func (g *guard) watch(pid int, started time.Time, ended chan struct{}) {
	defer close(ended)
	awaitExit(pid)
	g.mu.Lock()
	exit := collect(pid)
	g.lease.Close()
	g.lease, g.pid = nil, 0
	closed := g.closed
	if time.Since(started) < guardShort {
		g.short++
	} else {
		g.short = 0
	}
	failed := g.short >= guardTries
	g.mu.Unlock()
	switch {
	case closed:
	case failed:
		g.log.Error("guard keeps failing, daemons may outlive a killed server", "exit", exit.String())
	default:
		g.log.Warn("guard ended, restarting it", "exit", exit.String())
		g.revive()
	}
}

// register adds the group of a new process to the table.
func (g *guard) register(p *Process) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if n := len(g.free); n > 0 {
		p.slot, g.free = g.free[n-1], g.free[:n-1]
	} else {
		p.slot = g.slots
		g.slots++
	}
	g.set(p.slot, p.pid, 0)
}

// markReaped records that the leader of a group was reaped. Then the guard must
// verify that the number is still the group's, or ignore it if the group has ended.
func (g *guard) markReaped(p *Process, ended bool, limit uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if ended {
		g.set(p.slot, 0, 0)
	} else {
		g.set(p.slot, p.pid, limit)
	}
}

// unregister removes the group of a process from the table.
func (g *guard) unregister(p *Process) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.set(p.slot, 0, 0)
	g.free = append(g.free, p.slot)
}

func (g *guard) set(slot, number int, limit uint64) {
	if g.table == nil { // no guard has started, or it is closed
		return
	}
	var b [slotSize]byte
	binary.LittleEndian.PutUint64(b[:8], uint64(number))
	binary.LittleEndian.PutUint64(b[8:], limit)
	if _, err := g.table.WriteAt(b[:], int64(slot)*slotSize); err != nil {
		g.log.Warn("cannot write guard table", "error", err)
	}
}

// close ends the daemons that left their group, then the guard.
func (g *guard) close() {
	endMarked(g.nonce, daemonGrace)
	g.mu.Lock()
	g.closed = true
	ended := g.ended
	if g.lease != nil {
		_, _ = g.lease.WriteString(goodbye) // a guard that has ended needs none
		// The watcher closes the pipe when the guard has ended: a guard must not read
		// its end before goodbye.
	}
	g.mu.Unlock()
	if ended != nil {
		select {
		case <-ended:
		case <-time.After(guardGrace):
			g.kill()
			<-ended
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.table != nil {
		g.table.Close()
		g.table = nil
	}
}

// kill ends a guard that does not respond. The number is the guard's while pid is set,
// which watch changes under the same lock.
func (g *guard) kill() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.pid != 0 {
		_ = syscall.Kill(g.pid, syscall.SIGKILL)
	}
}
