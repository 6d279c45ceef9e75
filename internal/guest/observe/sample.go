package observe

import (
	"cmp"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// Cgroup is the resource usage of the sandbox.
type Cgroup struct {
	CPUPercent    *float64 `json:"cpu_usage_pct" doc:"Percent of one core since the previous sample; 200 means two cores"`
	CPUUsec       int64    `json:"cpu_usage_usec"`
	Periods       *int64   `json:"cpu_nr_periods"`
	Throttled     *int64   `json:"cpu_nr_throttled"`
	ThrottledUsec *int64   `json:"cpu_throttled_usec"`
	Memory        int64    `json:"mem_current_bytes"`
	MemoryMax     *int64   `json:"mem_max_bytes"`
	MemoryPercent *float64 `json:"mem_usage_pct"`
	OOM           *int64   `json:"oom"`
	OOMKill       *int64   `json:"oom_kill"`
	Anon          *int64   `json:"memory_anon_bytes"`
	File          *int64   `json:"memory_file_bytes"`
	Shmem         *int64   `json:"memory_shmem_bytes"`
	Slab          *int64   `json:"memory_slab_bytes"`
	Source        string   `json:"source" doc:"Source of the figures: cgroup v1, cgroup v2 or proc"`
}

// Disk is one file system.
type Disk struct {
	Path         string   `json:"path"`
	Used         int64    `json:"used_bytes"`
	Total        int64    `json:"total_bytes"`
	Free         int64    `json:"free_bytes"`
	Percent      float64  `json:"usage_pct"`
	InodeUsed    *int64   `json:"inode_used"`
	InodeTotal   *int64   `json:"inode_total"`
	InodePercent *float64 `json:"inode_usage_pct"`
}

// Sample is one measurement.
type Sample struct {
	Time      time.Time `json:"ts"`
	Cgroup    Cgroup    `json:"cgroup"`
	Disk      []Disk    `json:"disk,omitempty"`
	Processes []Process `json:"processes,omitempty"`

	ticks map[processKey]int // CPU time of each process
}

// measure takes a sample, computes rates since earlier samples, and records events.
func (s *Service) measure(processes bool) Sample {
	next := s.read(processes)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.counted != nil {
		s.detect(s.counted, &next)
	}
	s.counted = &next
	if next.setRate(s.last) {
		s.last = &next
	}
	if processes && next.setProcessRates(s.lastAll) {
		s.lastAll = &next
	}
	return next
}

// read takes a sample.
func (s *Service) read(processes bool) Sample {
	group := s.group()
	sample := Sample{Time: time.Now(), Cgroup: group.read(), Disk: s.disks()}
	if processes || !group.complete() {
		list := s.processes(processes)
		group.fill(&sample.Cgroup, list)
		if processes {
			sample.Processes, sample.ticks = list, make(map[processKey]int, len(list))
			for _, p := range list {
				sample.ticks[p.key] = p.ticks
			}
		}
	}
	if c := &sample.Cgroup; c.MemoryMax != nil && *c.MemoryMax > 0 {
		c.MemoryPercent = new(percent(c.Memory, *c.MemoryMax))
	}
	return sample
}

// setRate computes the CPU usage since an earlier sample. It reports whether enough time has passed
// for this sample to replace the earlier one.
func (s *Sample) setRate(before *Sample) bool {
	if before == nil {
		return true
	}
	window := s.Time.Sub(before.Time)
	if window < minWindow/3 {
		s.Cgroup.CPUPercent = before.Cgroup.CPUPercent
		return false
	}
	s.Cgroup.CPUPercent = new(max(0, float64(s.Cgroup.CPUUsec-before.Cgroup.CPUUsec)/float64(window.Microseconds())*100))
	return true
}

// setProcessRates computes the CPU usage of each process since an earlier sample; for a new
// process, since its start.
func (s *Sample) setProcessRates(before *Sample) bool {
	if before == nil {
		return true
	}
	window := s.Time.Sub(before.Time).Seconds()
	if window < minWindow.Seconds()/3 {
		return false
	}
	for i := range s.Processes {
		p := &s.Processes[i]
		if was, ok := before.ticks[p.key]; ok {
			p.CPUPercent = new(float64(p.ticks-was) / tickRate / window * 100)
		} else if p.Uptime != nil && *p.Uptime > 1/tickRate {
			p.CPUPercent = new(float64(p.ticks) / tickRate / *p.Uptime * 100)
		}
	}
	return true
}

// top returns the largest and the busiest processes.
func (s *Sample) top(n int) (byMemory, byCPU []Process) {
	n = min(n, len(s.Processes))
	slices.SortFunc(s.Processes, func(a, b Process) int { return cmp.Or(cmp.Compare(b.RSS, a.RSS), cmp.Compare(a.PID, b.PID)) })
	byMemory = slices.Clone(s.Processes[:n])
	busy := slices.DeleteFunc(slices.Clone(s.Processes), func(p Process) bool { return p.CPUPercent == nil || *p.CPUPercent == 0 })
	slices.SortFunc(busy, func(a, b Process) int {
		return cmp.Or(cmp.Compare(*b.CPUPercent, *a.CPUPercent), cmp.Compare(a.PID, b.PID))
	})
	return byMemory, busy[:min(n, len(busy))]
}

// disks measures the configured file systems, each once.
func (s *Service) disks() (list []Disk) {
	type filesystem struct{ a, b int32 }
	seen := map[filesystem]bool{}
	for _, path := range s.cfg.Disks {
		var st unix.Statfs_t
		if unix.Statfs(path, &st) != nil || st.Blocks == 0 {
			continue
		}
		id := filesystem{st.Fsid.Val[0], st.Fsid.Val[1]}
		if id != (filesystem{}) && seen[id] {
			continue
		}
		seen[id] = true
		size := st.Frsize
		if size == 0 {
			size = st.Bsize
		}
		d := Disk{Path: path, Total: int64(st.Blocks) * size, Free: int64(st.Bavail) * size, Used: int64(st.Blocks-st.Bfree) * size}
		d.Percent = percent(d.Used, d.Used+d.Free) // as in df: without space reserved for root
		if st.Files > 0 {
			total, used := int64(st.Files), int64(st.Files-st.Ffree)
			d.InodeTotal, d.InodeUsed, d.InodePercent = &total, &used, new(percent(used, total))
		}
		list = append(list, d)
	}
	return list
}

func percent(part, whole int64) float64 {
	if whole <= 0 {
		return 0
	}
	return float64(part) / float64(whole) * 100
}
