package watch

import "sync"

// Kinds of events.
const (
	Create   = "create"
	Write    = "write"
	Remove   = "remove"
	Rename   = "rename"
	Chmod    = "chmod"
	Overflow = "overflow"
)

// Event is one change.
type Event struct {
	Seq         int64   `json:"seq" doc:"Number in the watcher's log"`
	Type        string  `json:"type" doc:"create, write, remove, rename, chmod; overflow when changes may have been missed"`
	Path        string  `json:"path" doc:"Absolute path; of a rename, the new one"`
	OldPath     *string `json:"old_path" doc:"Of a rename, the old path"`
	IsDirectory bool    `json:"is_directory"`
	Timestamp   string  `json:"timestamp"`
	Reason      *string `json:"reason" doc:"Of an overflow, why"`
}

// log keeps the last events of a watcher.
type log struct {
	mu      sync.Mutex
	events  []Event // a ring once it is full
	max     int
	seq     int64
	changed chan struct{} // closed at the next event
}

func newLog(max int) *log { return &log{max: max, changed: make(chan struct{})} }

func (l *log) add(e Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seq++
	e.Seq = l.seq
	if len(l.events) < l.max {
		l.events = append(l.events, e)
	} else {
		l.events[(l.seq-1)%int64(l.max)] = e
	}
	close(l.changed)
	l.changed = make(chan struct{})
}

// after returns events behind the cursor, how many of them are no longer kept,
// whether there are more than the limit, and what tells of the next one.
func (l *log) after(cursor int64, limit int) (events []Event, dropped int64, more bool, changed <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	first := l.seq - int64(len(l.events)) // the one before the oldest kept
	if cursor < first {
		dropped, cursor = first-cursor, first
	}
	for seq := cursor + 1; seq <= l.seq; seq++ {
		if len(events) == limit {
			more = true
			break
		}
		events = append(events, l.events[(seq-1)%int64(l.max)])
	}
	return events, dropped, more, l.changed
}

func (l *log) last() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.seq
}

func (l *log) kept() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.events)
}
