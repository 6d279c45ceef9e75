package cgroup

import (
	"cmp"
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

// Limits bounds a group; zero is no limit.
type Limits struct {
	CPU    int64 // thousandths of a processor
	Share  int64 // thousandths of a processor under contention
	Memory int64 // bytes
	Pids   int64
	// DiskRate bounds reads from, and writes to, a Device (see DeviceOf), in bytes per second.
	DiskRate int64
	Device   string
}

// Group is the group of a sandbox, in every used hierarchy.
type Group struct {
	unified string
	dirs    map[string]string
	io      string // v1 group for disk I/O, which exists only if that is limited
}

// Usage is the resource usage of a group; -1 is unknown.
type Usage struct {
	CPU      time.Duration
	Memory   int64
	Pids     int64
	OOMKills int64
}

// Folders lists the group in each hierarchy once.
func (g *Group) Folders() []string {
	return (&Root{unified: g.unified, dirs: g.dirs}).folders()
}

// v2 reports whether a controller is one of cgroup v2.
func (g *Group) v2(ctrl string) bool { return g.unified != "" && g.dirs[ctrl] == g.unified }

func (g *Group) file(ctrl, name string) string { return filepath.Join(g.dirs[ctrl], name) }

// period is the period over which processor time is limited, in microseconds.
const period = 100_000

// Set changes the limits, even while the group is in use.
func (g *Group) Set(l Limits) error {
	type setting struct {
		ctrl, v1, v2 string
		v1val, v2val string
	}
	settings := []setting{
		{"pids", "pids.max", "pids.max", orMax(l.Pids), orMax(l.Pids)},
		{"cpu", "cpu.cfs_quota_us", "cpu.max", orMinus(l.CPU * period / 1000), orMax(l.CPU*period/1000) + " " + strconv.Itoa(period)},
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
	if l.Share > 0 {
		if err := g.Yield(false, l.Share); err != nil {
			return fmt.Errorf("set limit: %w", err)
		}
	}
	if err := g.setDiskRate(l.Device, l.DiskRate); err != nil {
		return fmt.Errorf("set limit: %w", err)
	}
	return g.setMemory(l.Memory)
}

const (
	usualShare    = 1000 // the kernel's default, in thousandths of a processor
	yieldingShare = 10
)

// Yield limits the group to processor time that no other group needs, or restores its share.
// A group with a small share keeps a processor for the rest of its time slice; a group that
// yields is preempted as soon as another group is runnable.
func (g *Group) Yield(on bool, share int64) error {
	if g.dirs["cpu"] == "" {
		return nil
	}
	share = cmp.Or(share, usualShare)
	if idle := g.file("cpu", "cpu.idle"); exists(idle) {
		if err := write(idle, map[bool]string{true: "1", false: "0"}[on]); err != nil || on {
			return err
		}
	} else if on { // a kernel before 5.15
		share = min(share, yieldingShare)
	}
	return g.setShare(share)
}

// setShare sets the share of the group under contention, in thousandths of a processor.
func (g *Group) setShare(share int64) error {
	if g.v2("cpu") {
		return write(g.file("cpu", "cpu.weight"), strconv.FormatInt(clamp(share/10, 1, 10000), 10))
	}
	return write(g.file("cpu", "cpu.shares"), strconv.FormatInt(clamp(share*1024/1000, 2, 262144), 10))
}

// CPU returns the processor time that the group has used, or -1 if it is unknown.
func (g *Group) CPU() time.Duration {
	if g.unified != "" {
		if data, err := os.ReadFile(filepath.Join(g.unified, "cpu.stat")); err == nil {
			if usec := field(string(data), "usage_usec"); usec >= 0 {
				return time.Duration(usec) * time.Microsecond
			}
		}
	}
	if g.dirs["cpu"] != "" { // v1 mounts cpu and cpuacct together on most machines
		if data, err := os.ReadFile(g.file("cpu", "cpuacct.usage")); err == nil {
			if n, err := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64); err == nil {
				return time.Duration(n)
			}
		}
	}
	return -1
}

// Waited returns the time in which a process of the group was runnable but had no processor, or 0
// if the kernel does not measure it.
func (g *Group) Waited() time.Duration {
	if g.unified == "" {
		return 0
	}
	data, _ := os.ReadFile(filepath.Join(g.unified, "cpu.pressure"))
	_, rest, _ := strings.Cut(string(data), "total=")
	digits, _, _ := strings.Cut(rest, "\n")
	usec, err := strconv.ParseInt(digits, 10, 64)
	if err != nil {
		return 0
	}
	return time.Duration(usec) * time.Microsecond
}

func (g *Group) setMemory(limit int64) error {
	if g.dirs["memory"] == "" {
		return nil
	}
	if g.v2("memory") {
		if err := write(g.file("memory", "memory.max"), orMax(limit)); err != nil {
			return fmt.Errorf("set memory limit: %w", err)
		}
		// Without swap accounting the file does not exist, and nothing can swap.
		if f := g.file("memory", "memory.swap.max"); exists(f) {
			return write(f, map[bool]string{true: "0", false: "max"}[limit > 0])
		}
		return nil
	}
	both := g.file("memory", "memory.memsw.limit_in_bytes")
	one := g.file("memory", "memory.limit_in_bytes")
	// Memory plus swap must never be below memory. If both grow, the sum must be set first. If
	// they shrink, the kernel refuses the first write, and the last one sets the sum.
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

// Open returns a descriptor of the v2 group to start a process in; nil without v2.
func (g *Group) Open() (*os.File, error) {
	if g.unified == "" {
		return nil, nil
	}
	fd, err := unix.Open(g.unified, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open control group: %w", err)
	}
	return os.NewFile(uintptr(fd), g.unified), nil
}

// Enter moves the calling thread into the v1 groups, so that its children are in
// them from their first instruction, and returns their folders. A thread moves
// itself at once, whereas moving another process waits for a grace period of the
// kernel: 5 ms and more. The thread must not be used for anything else.
func (g *Group) Enter() (entered []string) {
	for _, dir := range g.Folders() {
		if dir != g.unified && write(filepath.Join(dir, "tasks"), "0") == nil {
			entered = append(entered, dir)
		}
	}
	return entered
}

// Add moves a process into the group, except for the folders that it has entered.
func (g *Group) Add(pid int, entered []string) error {
	for _, dir := range g.Folders() {
		if slices.Contains(entered, dir) {
			continue
		}
		if err := write(filepath.Join(dir, "cgroup.procs"), strconv.Itoa(pid)); err != nil {
			return fmt.Errorf("enter control group: %w", err)
		}
	}
	return nil
}

// Procs lists the processes in the group, by their PIDs outside the sandbox. It omits
// the calling process, which may have a thread in the group temporarily (see Enter).
func (g *Group) Procs() ([]int, error) {
	var pids []int
	own := os.Getpid()
	for _, dir := range g.Folders() {
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

// ErrNoFreezer means that groups cannot be frozen.
var ErrNoFreezer = errors.New("no freezer: neither cgroup v2 nor the v1 freezer controller is available")

// freezeTimeout bounds the wait for processes that are busy in the kernel.
const freezeTimeout = 30 * time.Second

// Freeze suspends all processes in the group and returns when they are suspended. If
// ctx ends before, it thaws the group.
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
	return Poll(ctx, func() (bool, error) {
		frozen, err := g.Frozen()
		return frozen == on, err
	})
}

// Frozen reports whether all processes in the group are suspended.
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

// field returns the number after a name in a text of "name number" lines, or -1.
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
	u.CPU = g.CPU()
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

// OOMKills returns the number of processes that were killed because the group ran out of memory.
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

// Kill kills all processes in the group. It does not wait for their end.
func (g *Group) Kill() error {
	if g.unified != "" {
		err := write(filepath.Join(g.unified, "cgroup.kill"), "1")
		if err == nil || !errors.Is(err, fs.ErrNotExist) {
			return ignoreGone(err)
		}
	}
	pids, err := g.Procs()
	for _, pid := range pids {
		// The process may have ended, and its PID may belong to another; killOne checks.
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

// ignoreGone ignores that a process or group does not exist.
func ignoreGone(err error) error {
	if errors.Is(err, unix.ESRCH) || errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return nil
	}
	return err
}

// KillExcept kills all processes in the group except those to keep.
func (g *Group) KillExcept(ctx context.Context, keep func(pid int) bool) error {
	// A frozen process cannot fork.
	if g.dirs["freezer"] != "" {
		if err := g.Freeze(ctx); err != nil {
			return err
		}
		defer g.Thaw(context.WithoutCancel(ctx))
	}
	pids, err := g.Procs()
	for _, pid := range pids {
		if !keep(pid) {
			err = errors.Join(err, g.killOne(pid))
		}
	}
	return err
}

// Remove kills the remaining processes in the group and removes the group.
func (g *Group) Remove(ctx context.Context) error {
	var last error
	err := Poll(ctx, func() (bool, error) {
		if last = g.rmdir(); last == nil {
			return true, nil
		}
		if err := g.Kill(); err != nil {
			return false, err
		}
		if frozen, _ := g.Frozen(); frozen && !g.v2("freezer") {
			// A frozen v1 task ends only after it is thawed.
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
	for _, dir := range g.Folders() {
		if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
