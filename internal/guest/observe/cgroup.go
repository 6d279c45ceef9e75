package observe

import (
	"bufio"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// group is the control group of the sandbox: a folder for each controller, empty if the group is
// not visible or is that of the machine.
type group struct {
	cpu, cpuacct, memory string
	unified              string // v2
}

// complete reports whether the group has the figures of CPU and memory, so that no processes must
// be read.
func (g group) complete() bool {
	return (g.unified != "" || g.cpuacct != "") && (g.memory != "" || g.unified != "" && exists(filepath.Join(g.unified, "memory.current")))
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// findGroup finds the group of this process. On a hybrid system, v2 has no controllers and v1 is
// used.
func findGroup(proc string) group {
	names := map[string]string{} // path of the group by controller; v2 is ""
	for line := range lines(filepath.Join(proc, "self/cgroup")) {
		_, rest, _ := strings.Cut(line, ":")
		controllers, path, ok := strings.Cut(rest, ":")
		if !ok {
			continue
		}
		for c := range strings.SplitSeq(controllers, ",") {
			names[c] = path
		}
	}
	var g group
	for line := range lines(filepath.Join(proc, "self/mountinfo")) {
		head, tail, ok := strings.Cut(line, " - ")
		fields, kind := strings.Fields(head), strings.Fields(tail)
		if !ok || len(fields) < 5 || len(kind) < 3 {
			continue
		}
		root, at := fields[3], fields[4]
		switch kind[0] {
		case "cgroup2":
			if dir := below(at, root, names[""]); g.unified == "" && exists(filepath.Join(dir, "cpu.stat")) &&
				(exists(filepath.Join(dir, "memory.current")) || dir != at) {
				g.unified = dir
			}
		case "cgroup":
			for c := range strings.SplitSeq(kind[2], ",") {
				dir := below(at, root, names[c])
				switch c {
				case "cpu":
					g.cpu = dir
				case "cpuacct":
					g.cpuacct = dir
				case "memory":
					g.memory = dir
				}
			}
		}
	}
	if g.unified != "" && exists(filepath.Join(g.unified, "memory.current")) {
		return group{unified: g.unified}
	}
	g.unified = ""
	return g
}

// below returns the folder of a group under a mount that shows the groups below root.
func below(mount, root, path string) string {
	if root != "/" {
		path = strings.TrimPrefix(path, root)
	}
	if dir := filepath.Join(mount, path); exists(dir) {
		return dir
	}
	return mount
}

// read reads the figures of the group; unavailable ones stay empty.
func (g group) read() Cgroup {
	if g.unified != "" {
		return g.readUnified()
	}
	c := Cgroup{Source: "proc"}
	if ns, ok := number(filepath.Join(g.cpuacct, "cpuacct.usage")); g.cpuacct != "" && ok {
		c.CPUUsec, c.Source = ns/1000, "cgroup v1"
	}
	if g.cpu != "" {
		stat := table(filepath.Join(g.cpu, "cpu.stat"))
		c.Periods, c.Throttled = stat.get("nr_periods"), stat.get("nr_throttled")
		if ns := stat.get("throttled_time"); ns != nil {
			c.ThrottledUsec = new(*ns / 1000)
		}
	}
	if g.memory != "" {
		c.Memory, _ = number(filepath.Join(g.memory, "memory.usage_in_bytes"))
		if limit, ok := number(filepath.Join(g.memory, "memory.limit_in_bytes")); ok && limit < 1<<62 {
			c.MemoryMax = &limit
		}
		c.OOMKill = table(filepath.Join(g.memory, "memory.oom_control")).get("oom_kill")
		c.OOM, _ = ptr(number(filepath.Join(g.memory, "memory.failcnt")))
		stat := table(filepath.Join(g.memory, "memory.stat"))
		c.Anon, c.File, c.Shmem = stat.get("total_rss"), stat.get("total_cache"), stat.get("total_shmem")
	}
	return c
}

func (g group) readUnified() Cgroup {
	file := func(name string) string { return filepath.Join(g.unified, name) }
	cpu, events, stat := table(file("cpu.stat")), table(file("memory.events")), table(file("memory.stat"))
	c := Cgroup{
		Source: "cgroup v2", Periods: cpu.get("nr_periods"), Throttled: cpu.get("nr_throttled"), ThrottledUsec: cpu.get("throttled_usec"),
		OOM: events.get("oom"), OOMKill: events.get("oom_kill"),
		Anon: stat.get("anon"), File: stat.get("file"), Shmem: stat.get("shmem"), Slab: stat.get("slab"),
	}
	if usec := cpu.get("usage_usec"); usec != nil {
		c.CPUUsec = *usec
	}
	c.Memory, _ = number(file("memory.current"))
	if limit, ok := number(file("memory.max")); ok {
		c.MemoryMax = &limit
	}
	return c
}

// stats are the numbers of a file of "name number" lines.
type stats map[string]int64

func (s stats) get(name string) *int64 {
	if n, ok := s[name]; ok {
		return &n
	}
	return nil
}

func table(path string) stats {
	out := stats{}
	for line := range lines(path) {
		name, text, _ := strings.Cut(line, " ")
		if n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64); err == nil {
			out[name] = n
		}
	}
	return out
}

func number(path string) (int64, bool) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	return n, err == nil
}

func ptr(n int64, ok bool) (*int64, bool) {
	if !ok {
		return nil, false
	}
	return &n, true
}

// lines yields the lines of a file, and none if it cannot be read.
func lines(path string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		f, err := os.Open(path)
		if err != nil {
			return
		}
		defer f.Close()
		for scan := bufio.NewScanner(f); scan.Scan(); {
			if !yield(scan.Text()) {
				return
			}
		}
	}
}
