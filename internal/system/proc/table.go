package proc

import (
	"bytes"
	"errors"
	"os"
	"slices"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// entry is one line of the kernel's process table.
type entry struct {
	pid, parent, group, session int
	zombie                      bool
	start                       uint64 // ticks since boot
}

// tick is the kernel's unit of time in the process table: USER_HZ is 100.
const tick = 10 * time.Millisecond

// processes reads the process table. It omits processes that end meanwhile.
func processes() ([]entry, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	names, err := dir.Readdirnames(-1)
	dir.Close()
	if err != nil {
		return nil, err
	}
	table := make([]entry, 0, len(names))
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if e, ok := readEntry(pid); ok {
			table = append(table, e)
		}
	}
	return table, nil
}

// readEntry reads one entry with plain system calls: a sweep reads hundreds, which
// need no poller.
func readEntry(pid int) (entry, bool) {
	var buf [1024]byte
	fd, err := syscall.Open("/proc/"+strconv.Itoa(pid)+"/stat", syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return entry{}, false
	}
	n, err := syscall.Read(fd, buf[:])
	syscall.Close(fd)
	if err != nil || n <= 0 {
		return entry{}, false
	}
	return parseStat(buf[:n])
}

// parseStat parses /proc/PID/stat. The process chooses the name in parentheses,
// which may contain anything, so fields are counted from the last parenthesis.
func parseStat(line []byte) (entry, bool) {
	open, last := bytes.IndexByte(line, '('), bytes.LastIndexByte(line, ')')
	if open < 0 || last < open {
		return entry{}, false
	}
	pid, err := strconv.Atoi(string(bytes.TrimSpace(line[:open])))
	fields := bytes.Fields(line[last+1:])
	if err != nil || len(fields) < 20 {
		return entry{}, false
	}
	e := entry{pid: pid, zombie: slices.Contains([]string{"Z", "X", "x"}, string(fields[0]))}
	for i, to := range []*int{&e.parent, &e.group, &e.session} {
		if *to, err = strconv.Atoi(string(fields[1+i])); err != nil {
			return entry{}, false
		}
	}
	e.start, err = strconv.ParseUint(string(fields[19]), 10, 64)
	return e, err == nil
}

// bootTicks returns the current time in the unit of entry.start.
func bootTicks() uint64 {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		return 1 // before any process started: nothing can be verified then
	}
	return uint64(now.Nano()) / uint64(tick)
}

// claim names a process group and the session of the same number.
//
// The kernel does not reuse a number while a group or session has it. So if one
// member existed before limit, when the number certainly was the claim's, all members
// belong to it. The number cannot be reused within the tick in which it was released:
// numbers wrap around, and no machine creates that many processes in 10 ms.
type claim struct {
	number  int
	session bool   // the whole session belongs to it
	limit   uint64 // last time at which the number certainly was the claim's; 0: still is
}

func (c claim) covers(e entry) bool {
	return e.group == c.number || c.session && e.session == c.number
}

// members returns the running processes that provably belong to the claim.
func (c claim) members(table []entry) []entry {
	living, _ := c.find(table)
	return living
}

// find also returns whether the table has any process with the claimed number,
// including zombies and foreign processes.
func (c claim) find(table []entry) (living []entry, anyone bool) {
	owned := c.limit == 0
	for _, e := range table {
		if !c.covers(e) {
			continue
		}
		anyone = true
		owned = owned || e.start <= c.limit
		if !e.zombie {
			living = append(living, e)
		}
	}
	if !owned {
		return nil, anyone
	}
	return living, anyone
}

// signalIfOwned signals exactly the process that e describes: a pidfd pins the
// process while still checks it. Without pidfds, a race between two system calls
// remains.
func signalIfOwned(e entry, sig syscall.Signal, still func(entry) bool) bool {
	fd, err := unix.PidfdOpen(e.pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return false
	}
	if err == nil {
		defer unix.Close(fd)
	}
	now, ok := readEntry(e.pid)
	if !ok || now.zombie || now.start != e.start || !still(now) {
		return false
	}
	if err == nil {
		return unix.PidfdSendSignal(fd, sig, nil, 0) == nil
	}
	return syscall.Kill(e.pid, sig) == nil
}

// groupEmpty reports whether the group has no process, not even a zombie.
func groupEmpty(group int) bool {
	return errors.Is(syscall.Kill(-group, 0), syscall.ESRCH)
}

// awaitExit waits until a child has ended and leaves it as a zombie, so that its
// number is not reused.
func awaitExit(pid int) {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if err == nil || !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

// collect reaps a child that has ended.
func collect(pid int) Exit {
	var status syscall.WaitStatus
	for {
		_, err := syscall.Wait4(pid, &status, 0, nil)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil {
			return notEnded
		}
		return exitOf(status)
	}
}
