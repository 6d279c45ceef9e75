package isolate

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Limits bounds a sandbox; zero is no limit.
type Limits struct {
	CPU      int64 // thousandths of a processor
	Share    int64 // thousandths of a processor it gets when they are short
	Memory   int64 // bytes
	Pids     int64
	Files    int64 // open files of one process
	FileSize int64 // bytes of one file
}

// Group is the control group of one sandbox, in every hierarchy we use.
type Group struct {
	unified string
	dirs    map[string]string
}

// Usage is what a group has used. What cannot be measured is -1.
type Usage struct {
	CPU      time.Duration
	Memory   int64
	Pids     int64
	OOMKills int64
}

func (g *Group) places() []string {
	return (&Cgroups{unified: g.unified, dirs: g.dirs}).places()
}

// v2 says whether the controller's files are those of cgroup v2.
func (g *Group) v2(ctrl string) bool { return g.unified != "" && g.dirs[ctrl] == g.unified }

func (g *Group) file(ctrl, name string) string { return filepath.Join(g.dirs[ctrl], name) }

// period is the time over which processor time is counted, in microseconds.
const period = 100_000

// Set changes the limits, also of a group in use.
func (g *Group) Set(l Limits) error {
	type setting struct {
		ctrl, v1, v2 string
		v1val, v2val string
	}
	settings := []setting{
		{"pids", "pids.max", "pids.max", orMax(l.Pids), orMax(l.Pids)},
		{"cpu", "cpu.cfs_quota_us", "cpu.max", orMinus(l.CPU * period / 1000), orMax(l.CPU*period/1000) + " " + strconv.Itoa(period)},
	}
	if l.Share > 0 {
		settings = append(settings, setting{"cpu", "cpu.shares", "cpu.weight",
			strconv.FormatInt(clamp(l.Share*1024/1000, 2, 262144), 10), strconv.FormatInt(clamp(l.Share/10, 1, 10000), 10)})
	}
	for _, s := range settings {
		if g.dirs[s.ctrl] == "" {
			continue
		}
		name, value := s.v1, s.v1val
		if g.v2(s.ctrl) {
			name, value = s.v2, s.v2val
		}
		if err := write(g.file(s.ctrl, name), value); err != nil {
			return fmt.Errorf("set limit: %w", err)
		}
	}
	return g.setMemory(l.Memory)
}

func (g *Group) setMemory(limit int64) error {
	if g.dirs["memory"] == "" {
		return nil
	}
	if g.v2("memory") {
		if err := write(g.file("memory", "memory.max"), orMax(limit)); err != nil {
			return fmt.Errorf("set memory limit: %w", err)
		}
		// Without swap accounting the file is absent, and nothing can swap.
		if f := g.file("memory", "memory.swap.max"); exists(f) {
			return write(f, map[bool]string{true: "0", false: "max"}[limit > 0])
		}
		return nil
	}
	both := g.file("memory", "memory.memsw.limit_in_bytes")
	one := g.file("memory", "memory.limit_in_bytes")
	// Memory plus swap must never be below memory, so when both grow the sum goes
	// first; when they shrink that is refused, and it goes last.
	if exists(both) {
		write(both, orMinus(limit))
	}
	if err := write(one, orMinus(limit)); err != nil {
		return fmt.Errorf("set memory limit: %w", err)
	}
	if exists(both) {
		return write(both, orMinus(limit))
	}
	return nil
}

func orMax(n int64) string {
	if n <= 0 {
		return "max"
	}
	return strconv.FormatInt(n, 10)
}

func orMinus(n int64) string {
	if n <= 0 {
		return "-1"
	}
	return strconv.FormatInt(n, 10)
}

func clamp(n, lo, hi int64) int64 { return max(lo, min(n, hi)) }

// open returns a handle of the v2 group to start a process in, or nil.
func (g *Group) open() (*os.File, error) {
	if g.unified == "" {
		return nil, nil
	}
	fd, err := unix.Open(g.unified, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open control group: %w", err)
	}
	return os.NewFile(uintptr(fd), g.unified), nil
}

// enter puts the calling thread into the v1 groups, so that what it forks is in
// them from its first instruction, and returns which. A thread that moves
// itself need not wait, whereas moving another process waits for a grace period
// of the kernel: 5 ms and more. The thread must not be used for anything else.
func (g *Group) enter() (entered []string) {
	for _, dir := range g.places() {
		if dir != g.unified && write(filepath.Join(dir, "tasks"), "0") == nil {
			entered = append(entered, dir)
		}
	}
	return entered
}

// add moves a process into the group, except where it already is.
func (g *Group) add(pid int, entered []string) error {
	for _, dir := range g.places() {
		if slices.Contains(entered, dir) {
			continue
		}
		if err := write(filepath.Join(dir, "cgroup.procs"), strconv.Itoa(pid)); err != nil {
			return fmt.Errorf("enter control group: %w", err)
		}
	}
	return nil
}

// Procs lists the processes in the group, by their PID out here. The calling
// process, of which a thread may be on its way through (see enter), is not one.
func (g *Group) Procs() ([]int, error) {
	var pids []int
	own := os.Getpid()
	for _, dir := range g.places() {
		data, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENODEV) {
			return nil, err
		}
		for _, f := range strings.Fields(string(data)) {
			if pid, err := strconv.Atoi(f); err == nil && pid > 0 && pid != own && !slices.Contains(pids, pid) {
				pids = append(pids, pid)
			}
		}
	}
	return pids, nil
}

// ErrNoFreezer is returned where nothing can be frozen.
var ErrNoFreezer = errors.New("no freezer: neither cgroup v2 nor the v1 freezer controller can be used")

// freezeTimeout bounds the wait for processes that are deep in the kernel.
const freezeTimeout = 30 * time.Second

// Freeze takes the processor from everything in the group and returns when
// nothing runs any more. If ctx ends before, the group is thawed again.
func (g *Group) Freeze(ctx context.Context) error {
	if err := g.freeze(ctx, true); err != nil {
		return errors.Join(err, g.freeze(context.WithoutCancel(ctx), false))
	}
	return nil
}

// Thaw ends Freeze.
func (g *Group) Thaw(ctx context.Context) error { return g.freeze(ctx, false) }

func (g *Group) freeze(ctx context.Context, on bool) error {
	if g.dirs["freezer"] == "" {
		return ErrNoFreezer
	}
	file, value := g.file("freezer", "freezer.state"), map[bool]string{true: "FROZEN", false: "THAWED"}[on]
	if g.v2("freezer") {
		file, value = g.file("freezer", "cgroup.freeze"), map[bool]string{true: "1", false: "0"}[on]
	}
	if err := write(file, value); err != nil {
		return fmt.Errorf("freeze: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, freezeTimeout)
	defer cancel()
	return poll(ctx, func() (bool, error) {
		frozen, err := g.Frozen()
		return frozen == on, err
	})
}

// Frozen says whether everything in the group stands still.
func (g *Group) Frozen() (bool, error) {
	switch {
	case g.dirs["freezer"] == "":
		return false, nil
	case g.v2("freezer"):
		events, err := os.ReadFile(g.file("freezer", "cgroup.events"))
		return field(string(events), "frozen") == 1, err
	default:
		state, err := os.ReadFile(g.file("freezer", "freezer.state"))
		return strings.TrimSpace(string(state)) == "FROZEN", err
	}
}

// poll asks until it hears yes, an error, or the end of ctx.
func poll(ctx context.Context, ask func() (bool, error)) error {
	wait := time.NewTimer(0)
	defer wait.Stop()
	for pause := 50 * time.Microsecond; ; pause = min(2*pause, 10*time.Millisecond) {
		if ok, err := ask(); ok || err != nil {
			return err
		}
		wait.Reset(pause)
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-wait.C:
		}
	}
}

// field returns the number behind a name in a file of "name number" lines, or -1.
func field(text, name string) int64 {
	for line := range strings.Lines(text) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), " "); ok && k == name {
			if n, err := strconv.ParseInt(v, 10, 64); err == nil {
				return n
			}
		}
	}
	return -1
}

// Usage measures the group.
func (g *Group) Usage() Usage {
	u := Usage{CPU: -1, Memory: -1, Pids: -1, OOMKills: -1}
	read := func(file string) string { data, _ := os.ReadFile(file); return string(data) }
	number := func(file string) int64 {
		n, err := strconv.ParseInt(strings.TrimSpace(read(file)), 10, 64)
		if err != nil {
			return -1
		}
		return n
	}
	if g.unified != "" {
		if usec := field(read(filepath.Join(g.unified, "cpu.stat")), "usage_usec"); usec >= 0 {
			u.CPU = time.Duration(usec) * time.Microsecond
		}
	} else if g.dirs["cpu"] != "" { // v1 mounts cpu and cpuacct together on most machines
		u.CPU = time.Duration(number(g.file("cpu", "cpuacct.usage")))
	}
	if g.dirs["pids"] != "" {
		u.Pids = number(g.file("pids", "pids.current"))
	}
	switch {
	case g.dirs["memory"] == "":
	case g.v2("memory"):
		u.Memory = number(g.file("memory", "memory.current"))
	default:
		u.Memory = number(g.file("memory", "memory.usage_in_bytes"))
	}
	u.OOMKills = g.OOMKills()
	return u
}

// OOMKills is how many processes were killed because the group's memory ran out.
func (g *Group) OOMKills() int64 {
	if g.dirs["memory"] == "" {
		return -1
	}
	name := "memory.oom_control"
	if g.v2("memory") {
		name = "memory.events"
	}
	data, _ := os.ReadFile(g.file("memory", name))
	return field(string(data), "oom_kill")
}

// Kill ends everything in the group; it returns before it is gone.
func (g *Group) Kill() error {
	if g.unified != "" {
		err := write(filepath.Join(g.unified, "cgroup.kill"), "1")
		if err == nil || !errors.Is(err, fs.ErrNotExist) {
			return ignoreGone(err)
		}
	}
	pids, err := g.Procs()
	for _, pid := range pids {
		// A PID read from our own group can at worst have ended since; that it
		// was given away within this moment is excluded by asking again.
		err = errors.Join(err, g.killOne(pid))
	}
	return err
}

func (g *Group) killOne(pid int) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return ignoreGone(err)
	}
	defer unix.Close(fd)
	if pids, err := g.Procs(); err != nil || !slices.Contains(pids, pid) {
		return err
	}
	return ignoreGone(unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0))
}

func ignoreGone(err error) error {
	if errors.Is(err, unix.ESRCH) || errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return nil
	}
	return err
}

// KillBut kills everything in the group but the init of the record and its
// program.
func (g *Group) KillBut(ctx context.Context, rec Record) error {
	// Frozen, nothing can fork away from under us.
	if g.dirs["freezer"] != "" {
		if err := g.Freeze(ctx); err != nil {
			return err
		}
		defer g.Thaw(context.WithoutCancel(ctx))
	}
	pids, err := g.Procs()
	for _, pid := range pids {
		if pid != rec.PID && innerPID(pid) != rec.Inner {
			err = errors.Join(err, g.killOne(pid))
		}
	}
	return err
}

// innerPID is a process's PID in its innermost namespace.
func innerPID(pid int) int {
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(status)) {
		if ids, ok := strings.CutPrefix(line, "NSpid:"); ok {
			f := strings.Fields(ids)
			n, _ := strconv.Atoi(f[len(f)-1])
			return n
		}
	}
	return 0
}

// Remove kills what is left in the group and removes it.
func (g *Group) Remove(ctx context.Context) error {
	var last error
	err := poll(ctx, func() (bool, error) {
		if last = g.rmdir(); last == nil {
			return true, nil
		}
		if err := g.Kill(); err != nil {
			return false, err
		}
		if frozen, _ := g.Frozen(); frozen && !g.v2("freezer") {
			// A frozen v1 task dies only when it is thawed.
			return false, write(g.file("freezer", "freezer.state"), "THAWED")
		}
		return false, nil
	})
	if err != nil {
		return fmt.Errorf("remove control group: %w", errors.Join(err, last))
	}
	return nil
}

func (g *Group) rmdir() error {
	var errs []error
	for _, dir := range g.places() {
		if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
