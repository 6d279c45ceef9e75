package watch

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/cove-sandbox/cove/internal/guest/internal/pathname"
)

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
	Seq         int64    `json:"seq" doc:"Number in the watcher's log"`
	Type        string   `json:"type" doc:"create, write, remove, rename or chmod; overflow if changes may have been missed"`
	Path        string   `json:"path" doc:"Absolute path; for a rename, the new path"`
	OldPath     *string  `json:"old_path" doc:"For a rename, the old path"`
	Relative    string   `json:"relative_path" doc:"Path below the watched folder"`
	IsDir       bool     `json:"is_dir"`
	IsDirectory bool     `json:"is_directory" doc:"The same as is_dir"`
	Timestamp   float64  `json:"timestamp" doc:"Unix time in seconds"`
	Time        string   `json:"time" doc:"The same as timestamp, in RFC 3339"`
	ModTime     *float64 `json:"mtime" doc:"Unix time of the last change of the content; null if the path no longer exists"`
	Size        *int64   `json:"size" doc:"Bytes; null if the path no longer exists"`
	Inode       *uint64  `json:"inode" doc:"Null if the path no longer exists"`
	Reason      *string  `json:"reason" doc:"For an overflow, the reason"`
}

// newEvent describes a change of a path below root, including its current state.
func newEvent(kind, root, path string, dir bool, now time.Time) Event {
	e := Event{Type: kind, Path: pathname.Show(path), IsDir: dir, IsDirectory: dir, Timestamp: seconds(now), Time: stamp(now)}
	if rel, err := filepath.Rel(root, path); err == nil && !strings.HasPrefix(rel, "..") {
		e.Relative = pathname.Show(rel)
	}
	if info, err := os.Lstat(path); err == nil && kind != Remove {
		e.describe(info)
	}
	return e
}

func (e *Event) describe(info fs.FileInfo) {
	e.ModTime, e.Size = new(seconds(info.ModTime())), new(info.Size())
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		e.Inode = new(st.Ino)
	}
}

func seconds(t time.Time) float64 { return float64(t.UnixMicro()) / 1e6 }

// log keeps the latest events of a watcher.
type log struct {
	mu      sync.Mutex
	events  []Event // a ring buffer when full
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

// after returns events after the cursor, the number of dropped ones, whether there are more than
// the limit, and a channel that is closed at the next event.
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
