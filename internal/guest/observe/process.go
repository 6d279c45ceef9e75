package observe

import (
	"bytes"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// tickRate is the unit of CPU times in /proc: USER_HZ, the same on all supported platforms.
const tickRate = 100.0

// maxProcesses limits the processes of one sample.
const maxProcesses = 8192

// Process is one process.
type Process struct {
	PID        int      `json:"pid"`
	User       string   `json:"user"`
	Comm       string   `json:"comm"`
	RSS        int64    `json:"rss_bytes"`
	RSSMiB     float64  `json:"rss_mib"`
	CPUPercent *float64 `json:"cpu_pct" doc:"Percent of one core since the previous sample"`
	Threads    *int     `json:"threads"`
	FDs        *int     `json:"fds"`
	State      *string  `json:"state"`
	Uptime     *float64 `json:"uptime_sec"`
	PPID       *int     `json:"ppid"`

	key   processKey
	ticks int   // CPU time
	ended int   // CPU time of its ended child processes
	anon  int64 // memory that it does not share
}

// processKey identifies a process even if its PID is reused.
type processKey struct {
	pid   int
	start uint64
}

// processes reads all processes, with details or only with the values for totals.
func (s *Service) processes(details bool) (list []Process) {
	dir, err := os.Open(s.cfg.Proc)
	if err != nil {
		return nil
	}
	names, _ := dir.Readdirnames(-1)
	dir.Close()
	up := uptime(s.cfg.Proc)
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil || len(list) >= maxProcesses {
			continue
		}
		base := filepath.Join(s.cfg.Proc, name)
		p, ok := readProcess(base, pid, up)
		if !ok {
			continue
		}
		if details {
			p.User = s.owner(base)
			if fds, err := os.ReadDir(filepath.Join(base, "fd")); err == nil {
				p.FDs = new(len(fds))
			}
		}
		list = append(list, p)
	}
	return list
}

// fill computes the figures that the control group lacks from the processes.
func (g group) fill(c *Cgroup, list []Process) {
	if g.unified == "" && g.cpuacct == "" {
		for _, p := range list {
			// The time of ended processes is part of their parents.
			c.CPUUsec += int64(p.ticks+p.ended) * int64(1e6/tickRate)
		}
	}
	if g.unified == "" && g.memory == "" {
		var anon int64
		for _, p := range list {
			anon += p.anon // shared pages would be counted repeatedly
		}
		c.Memory, c.Anon = anon, &anon
	}
}

// readProcess reads one process from its folder in /proc.
func readProcess(base string, pid int, up float64) (p Process, ok bool) {
	b, err := os.ReadFile(filepath.Join(base, "stat"))
	if err != nil {
		return p, false
	}
	// The name may contain any characters, including parentheses and spaces.
	open, end := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
	if open < 0 || end < open || end+2 > len(b) {
		return p, false
	}
	f := strings.Fields(string(b[end+2:]))
	if len(f) < 22 {
		return p, false
	}
	at := func(i int) int { n, _ := strconv.Atoi(f[i-3]); return n } // numbered as in proc(5)
	start, _ := strconv.ParseUint(f[19], 10, 64)
	page := int64(os.Getpagesize())
	p = Process{
		PID: pid, Comm: strings.ToValidUTF8(string(b[open+1:end]), "\uFFFD"), RSS: int64(at(24)) * page,
		State: new(f[0]), PPID: new(at(4)), Threads: new(at(20)), Uptime: new(max(0, up-float64(start)/tickRate)),
		key: processKey{pid, start}, ticks: at(14) + at(15), ended: at(16) + at(17),
	}
	p.RSSMiB, p.anon = float64(p.RSS)/(1<<20), p.RSS
	if b, err := os.ReadFile(filepath.Join(base, "statm")); err == nil {
		if m := strings.Fields(string(b)); len(m) > 2 {
			shared, _ := strconv.ParseInt(m[2], 10, 64)
			p.anon = max(0, p.RSS-shared*page)
		}
	}
	return p, true
}

// uptime returns the seconds since the machine started. Start times of processes are relative to
// that.
func uptime(proc string) float64 {
	b, err := os.ReadFile(filepath.Join(proc, "uptime"))
	if err != nil {
		return 0
	}
	first, _, _ := strings.Cut(string(b), " ")
	n, _ := strconv.ParseFloat(first, 64)
	return n
}

// owner returns the name of the user that runs a process.
func (s *Service) owner(dir string) string {
	info, err := os.Stat(dir)
	if err != nil {
		return ""
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return ""
	}
	if name, ok := s.users.Load(st.Uid); ok {
		return name.(string)
	}
	name := strconv.FormatUint(uint64(st.Uid), 10)
	if u, err := user.LookupId(name); err == nil {
		name = u.Username
	}
	s.users.Store(st.Uid, name)
	return name
}
