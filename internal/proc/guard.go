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

// markName is the environment variable by which the guard knows its own.
const markName = "AIO_GUARD"

// goodbye is what a guard reads when it has nothing to do.
const goodbye = "bye\n"

const (
	// guardShort is a life so short that the guard cannot have worked.
	guardShort = time.Second
	// guardTries is how many short lives in a row it takes to give up.
	guardTries = 3
	// daemonGrace is how long Close waits for marked daemons between TERM and KILL.
	daemonGrace = time.Second
	// guardGrace is how long Close waits for the guard after goodbye.
	guardGrace = 3 * time.Second
	// slotSize is a group's number and its limit, see claim.
	slotSize = 16
)

// guard is the runner's side of the guard process, which ends everything that
// was started here when this program is killed and can no longer do it.
//
// The two share a pipe, whose end tells the guard that we are gone, and a
// memory file with the numbers of our groups. Writing a group down costs one
// system call and wakes nobody.
type guard struct {
	argv   []string
	nonce  string
	log    *slog.Logger
	forks  *forker
	revive func()

	mu     sync.Mutex
	closed bool
	lease  *os.File // our end of the pipe; nil while there is no guard
	pid    int
	ended  chan struct{}
	short  int // short lives in a row
	table  *os.File
	slots  int
	free   []int
}

// marked is env with the mark. A mark of an outer runner is replaced: its guard
// ends this program, and this program's guard ends our children.
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

// up starts the guard unless it runs. Without one, children still die with us by
// their parent-death signal; so a guard that cannot be started is reported and
// nothing fails.
func (g *guard) up() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.lease != nil || g.closed || g.short >= guardTries {
		return
	}
	if err := g.start(); err != nil {
		g.short = guardTries
		g.log.Error("guard cannot be started, daemons may outlive a killed server", "error", err)
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
	// A session of its own, so that what kills our group or terminal spares it,
	// and no environment, so that no guard takes it for a child.
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

// watch waits for the guard and replaces it when it dies.
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
		g.log.Error("guard does not stay up, daemons may outlive a killed server", "exit", exit.String())
	default:
		g.log.Warn("guard ended, starting another", "exit", exit.String())
		g.revive()
	}
}

// enter writes down the group of a process that started.
func (g *guard) enter(p *Process) {
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

// reaped writes down that the number of a group is no longer held by its leader:
// from now on it must be proved whose it is, or, if the group is gone, forgotten.
func (g *guard) reaped(p *Process, gone bool, limit uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if gone {
		g.set(p.slot, 0, 0)
	} else {
		g.set(p.slot, p.pid, limit)
	}
}

// leave takes back what enter wrote.
func (g *guard) leave(p *Process) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.set(p.slot, 0, 0)
	g.free = append(g.free, p.slot)
}

func (g *guard) set(slot, number int, limit uint64) {
	if g.table == nil { // no guard could be started, or all is over
		return
	}
	var b [slotSize]byte
	binary.LittleEndian.PutUint64(b[:8], uint64(number))
	binary.LittleEndian.PutUint64(b[8:], limit)
	if _, err := g.table.WriteAt(b[:], int64(slot)*slotSize); err != nil {
		g.log.Warn("guard table cannot be written", "error", err)
	}
}

// close ends the daemons that left their group, then lets the guard go.
func (g *guard) close() {
	endMarked(g.nonce, daemonGrace)
	g.mu.Lock()
	g.closed = true
	ended := g.ended
	if g.lease != nil {
		_, _ = g.lease.WriteString(goodbye) // a guard that is gone needs none
		// The watcher closes the pipe when the guard has ended: no guard may see
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

// kill ends a guard that does not react. Its number is ours as long as pid is
// set, which watch changes under the same lock.
func (g *guard) kill() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.pid != 0 {
		_ = syscall.Kill(g.pid, syscall.SIGKILL)
	}
}
