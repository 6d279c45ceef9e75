package observe

import (
	"fmt"
	"sync"
	"time"
)

// Event is something that an operator should know.
type Event struct {
	Time    time.Time      `json:"ts"`
	Type    string         `json:"type" doc:"oom_kill, cpu_throttled, memory_high, disk_high, inodes_high or component_failed"`
	Message string         `json:"message"`
	Data    map[string]any `json:"data"`
}

// maxEvents is how many events are remembered.
const maxEvents = 100

const (
	highPercent = 90.0
	// lowPercent is how far a figure must fall before it can rise above highPercent again:
	// one that sways around the limit is one event.
	lowPercent = 85.0
	// throttledShare is the share of periods in which a sandbox must be throttled.
	throttledShare = 0.25
)

// events are the latest events.
type events struct {
	mu   sync.Mutex
	ring []Event
	seen int // events ever
	high map[string]bool
}

func (e *events) add(at time.Time, kind, message string, data map[string]any) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.seen++
	e.ring = append(e.ring, Event{at, kind, message, data})
	if len(e.ring) > maxEvents {
		e.ring = append([]Event{}, e.ring[len(e.ring)-maxEvents:]...)
	}
}

// list returns the events, oldest first.
func (e *events) list() []Event {
	list, _ := e.since(0)
	return list
}

// since returns the events after the first n, and how many there were.
func (e *events) since(n int) ([]Event, int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	fresh := min(max(e.seen-n, 0), len(e.ring))
	return append([]Event{}, e.ring[len(e.ring)-fresh:]...), e.seen
}

// cross reports whether a figure has risen above the limit since it was low.
func (e *events) cross(name string, value float64) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.high == nil {
		e.high = map[string]bool{}
	}
	was := e.high[name]
	e.high[name] = value >= highPercent || was && value > lowPercent
	return e.high[name] && !was
}

// detect records what happened between two samples; s.mu is held.
func (s *Service) detect(before, now *Sample) {
	a, b := before.Cgroup, now.Cgroup
	if n := growth(a.OOMKill, b.OOMKill); n > 0 {
		s.events.add(now.Time, "oom_kill",
			fmt.Sprintf("%d processes were killed because the sandbox ran out of memory; use less or raise the limit", n),
			map[string]any{"count": n, "mem_max_bytes": b.MemoryMax})
	}
	if n, periods := growth(a.Throttled, b.Throttled), growth(a.Periods, b.Periods); n > 0 && float64(n) >= throttledShare*float64(periods) {
		s.events.add(now.Time, "cpu_throttled", fmt.Sprintf("the sandbox reached its CPU limit in %d of %d periods",
			n, periods), map[string]any{"throttled": n, "periods": periods})
	}
	if p := b.MemoryPercent; p != nil && s.events.cross("memory", *p) {
		s.events.add(now.Time, "memory_high", fmt.Sprintf("memory is %.0f %% full", *p),
			map[string]any{"usage_pct": *p, "mem_current_bytes": b.Memory, "mem_max_bytes": b.MemoryMax})
	}
	for _, d := range now.Disk {
		if s.events.cross("disk "+d.Path, d.Percent) {
			s.events.add(now.Time, "disk_high", fmt.Sprintf("the disk at %s is %.0f %% full", d.Path, d.Percent),
				map[string]any{"path": d.Path, "usage_pct": d.Percent, "free_bytes": d.Free})
		}
		if d.InodePercent != nil && s.events.cross("inodes "+d.Path, *d.InodePercent) {
			s.events.add(now.Time, "inodes_high",
				fmt.Sprintf("%.0f %% of the files that the disk at %s can hold exist", *d.InodePercent, d.Path),
				map[string]any{"path": d.Path, "inode_usage_pct": *d.InodePercent})
		}
	}
	for _, c := range s.cfg.Components {
		state, why := c.State()
		if failed := state == "failed"; failed != s.failed[c.Name] {
			s.failed[c.Name] = failed
			if failed {
				s.events.add(now.Time, "component_failed", fmt.Sprintf("%s failed: %s", c.Name, why),
					map[string]any{"component": c.Name, "reason": why})
			}
		}
	}
}

// growth is how much a counter has grown; 0 if it is unknown.
func growth(before, now *int64) int64 {
	if before == nil || now == nil {
		return 0
	}
	return max(0, *now-*before)
}
