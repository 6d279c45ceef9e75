package initprocess

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/system/isolate/cgroup"
)

// freezeTimeout bounds the wait for processes that are busy in the kernel.
const freezeTimeout = 8 * time.Second

// freezer suspends all processes inside with signals, for hubs whose control groups cannot. No process
// inside can prevent it: SIGSTOP cannot be caught, and a stopped process cannot continue another.
type freezer struct {
	mu      sync.Mutex
	frozen  bool
	stopped map[int]bool // PIDs of processes that were stopped before, such as the job of a shell
}

// process is a process inside.
type process struct {
	pid, parent int
	depth       int // below init
	stopped     bool
}

// set freezes or thaws all processes. It is a no-op if they are.
func (f *freezer) set(on bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if on == f.frozen {
		return nil
	}
	if !on {
		f.frozen = false
		return f.thaw()
	}
	list, err := processes()
	if err != nil {
		return err
	}
	f.stopped = map[int]bool{}
	for _, p := range list {
		if p.stopped {
			f.stopped[p.pid] = true
		}
	}
	if err := freeze(); err != nil {
		return errors.Join(err, f.thaw())
	}
	f.frozen = true
	return nil
}

// freeze stops parents before their children, because a shell would report a stopped child.
func freeze() error {
	ctx, cancel := context.WithTimeout(context.Background(), freezeTimeout)
	defer cancel()
	complete := 0
	return cgroup.Poll(ctx, func() (bool, error) {
		list, err := processes()
		if err != nil {
			return false, err
		}
		list = slices.DeleteFunc(list, func(p process) bool { return p.stopped })
		if len(list) == 0 {
			// A process that was forked while the first list was read can be missing in it.
			complete++
			return complete == 2, nil
		}
		complete = 0
		top := slices.MinFunc(list, func(a, b process) int { return a.depth - b.depth }).depth
		for _, p := range list {
			if p.depth == top {
				syscall.Kill(p.pid, unix.SIGSTOP) //nolint:errcheck // it may have ended
			}
		}
		return false, nil
	})
}

// thaw continues children before their parents.
func (f *freezer) thaw() error {
	list, err := processes()
	if err != nil {
		return err
	}
	slices.SortFunc(list, func(a, b process) int { return b.depth - a.depth })
	for _, p := range list {
		if !f.stopped[p.pid] {
			syscall.Kill(p.pid, unix.SIGCONT) //nolint:errcheck // it may have ended
		}
	}
	return nil
}

// processes lists the processes inside, except init and those that have ended.
func processes() ([]process, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var list []process
	parents := map[int]int{}
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil || pid == os.Getpid() {
			continue
		}
		stat, err := os.ReadFile("/proc/" + name + "/stat")
		if err != nil {
			continue // it has ended
		}
		// The name may contain spaces and brackets: fields are counted from the last bracket.
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		if len(fields) < 2 || strings.Contains("ZX", fields[0]) {
			continue
		}
		parent, _ := strconv.Atoi(fields[1])
		parents[pid] = parent
		list = append(list, process{pid: pid, parent: parent, stopped: strings.EqualFold(fields[0], "t")})
	}
	for i := range list {
		for at := list[i].parent; at != 0 && list[i].depth < len(list); at = parents[at] {
			list[i].depth++
		}
	}
	return list, nil
}
