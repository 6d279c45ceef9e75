package observe

import (
	"fmt"
	"sync"
	"time"
)

// Event is a problem that an operator should know about.
type Event struct {
	Time    time.Time      `json:"ts"`
	Type    string         `json:"type" doc:"oom_kill, cpu_throttled, memory_high, disk_high, inodes_high or component_failed"`
	Message string         `json:"message"`
	Data    map[string]any `json:"data"`
}

// maxEvents limits the events in memory.
const maxEvents = 100

const (
	highPercent = 90.0
	// lowPercent is the value below which a figure must fall before it can cause another event, so
	// that oscillation around the limit is one event.
	lowPercent = 85.0
	// throttledShare is the minimum share of throttled periods for an event.
	throttledShare = 0.25
)

// events are the latest events.
type events struct {
	mu   sync.Mutex
	ring []Event
	seen int // number of all events
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

// since returns the events after the first n, and the number of all events.
func (e *events) since(n int) ([]Event, int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	fresh := min(max(e.seen-n, 0), len(e.ring))
	return append([]Event{}, e.ring[len(e.ring)-fresh:]...), e.seen
}

// cross reports whether a figure has newly exceeded the limit.
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

// detect records the events between two samples; s.mu is held.
func (s *Service) detect(before, after *Sample) {
	a, b := before.Cgroup, after.Cgroup
	if n := growth(a.OOMKill, b.OOMKill); n > 0 {
		s.events.add(after.Time, "oom_kill",
			fmt.Sprintf("%d processes were killed because the sandbox ran out of memory; use less memory or raise the limit", n),
			map[string]any{"count": n, "mem_max_bytes": b.MemoryMax})
	}
	if n, periods := growth(a.Throttled, b.Throttled), growth(a.Periods, b.Periods); n > 0 && float64(n) >= throttledShare*float64(periods) {
		s.events.add(after.Time, "cpu_throttled", fmt.Sprintf("the sandbox reached its CPU limit in %d of %d periods",
			n, periods), map[string]any{"throttled": n, "periods": periods})
	}
	if p := b.MemoryPercent; p != nil && s.events.cross("memory", *p) {
		s.events.add(after.Time, "memory_high", fmt.Sprintf("memory is %.0f %% full", *p),
			map[string]any{"usage_pct": *p, "mem_current_bytes": b.Memory, "mem_max_bytes": b.MemoryMax})
	}
	for _, d := range after.Disk {
		if s.events.cross("disk "+d.Path, d.Percent) {
			s.events.add(after.Time, "disk_high", fmt.Sprintf("the disk at %s is %.0f %% full", d.Path, d.Percent),
				map[string]any{"path": d.Path, "usage_pct": d.Percent, "free_bytes": d.Free})
		}
		if d.InodePercent != nil && s.events.cross("inodes "+d.Path, *d.InodePercent) {
			s.events.add(after.Time, "inodes_high",
				fmt.Sprintf("%.0f %% of the inodes of the disk at %s are in use", *d.InodePercent, d.Path),
				map[string]any{"path": d.Path, "inode_usage_pct": *d.InodePercent})
		}
	}
	for _, c := range s.cfg.Components {
		state, why := c.State()
		if failed := state == "failed"; failed != s.failed[c.Name] {
			s.failed[c.Name] = failed
			if failed {
				s.events.add(after.Time, "component_failed", fmt.Sprintf("%s failed: %s", c.Name, why),
					map[string]any{"component": c.Name, "reason": why})
			}
		}
	}
}

// growth returns the increase of a counter, and 0 if it is unknown.
func growth(before, after *int64) int64 {
	if before == nil || after == nil {
		return 0
	}
	return max(0, *after-*before)
}
