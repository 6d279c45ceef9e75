// Package history keeps the latest events of a hub for readers that reconnect. It is limited in size: a
// reader that is too slow gets a notice that it missed events.
package history

import (
	"crypto/rand"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/sandbox"
)

// Size is the number of events that are kept.
const Size = 2048

// Event is one event of a sandbox.
type Event struct {
	Seq     int64
	Kind    string
	Time    time.Time
	Sandbox sandbox.Sandbox // state after the event, without environment and arguments
	Message string
}

// Log numbers events and keeps the latest. A number is valid only together with the log's epoch, because
// another hub counts from one again.
type Log struct {
	epoch string

	mu      sync.Mutex
	closed  bool
	last    int64         // number of the latest; the first is 1
	kept    []Event       // a ring when it is full: number n is at (n-1) % Size
	changed chan struct{} // closed and replaced at each event
}

// New returns an empty log.
func New() *Log {
	return &Log{epoch: strings.ToLower(rand.Text()[:8]), changed: make(chan struct{})}
}

// Add appends an event. It omits fields that are large or can contain secrets.
func (l *Log) Add(kind string, at time.Time, sb sandbox.Sandbox, message string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	sb.Spec.Env, sb.Spec.Args, sb.Spec.Command = nil, nil, nil
	l.last++
	e := Event{l.last, kind, at, sb, message}
	if len(l.kept) < Size {
		l.kept = append(l.kept, e)
	} else {
		l.kept[(l.last-1)%Size] = e
	}
	close(l.changed)
	l.changed = make(chan struct{})
}

// Since is the events after a number.
type Since struct {
	Events  []Event
	Last    int64 // number of the latest event
	Lost    bool  // some events are lost, and Events is empty
	Closed  bool
	Changed <-chan struct{} // closed at the next event
}

// After returns the events after number seq.
func (l *Log) After(seq int64) Since {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := Since{Last: l.last, Closed: l.closed, Changed: l.changed}
	if s.Lost = seq > l.last || l.last-seq > Size; s.Lost {
		return s
	}
	for n := seq + 1; n <= l.last; n++ {
		s.Events = append(s.Events, l.kept[(n-1)%Size])
	}
	return s
}

// Of returns the kept events of a sandbox, oldest first.
func (l *Log) Of(id string) (list []Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for n := max(1, l.last-Size+1); n <= l.last; n++ {
		if e := l.kept[(n-1)%Size]; e.Sandbox.ID == id {
			list = append(list, e)
		}
	}
	return list
}

// Last is the number of the latest event.
func (l *Log) Last() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last
}

// ID identifies an event across hubs.
func (l *Log) ID(seq int64) string { return l.epoch + "-" + strconv.FormatInt(seq, 10) }

// Find returns the number of an ID; false if the ID is from another log.
func (l *Log) Find(id string) (int64, bool) {
	epoch, n, ok := strings.Cut(id, "-")
	seq, err := strconv.ParseInt(n, 10, 64)
	return seq, ok && err == nil && epoch == l.epoch && seq >= 0
}

// Close ends all readers. It is idempotent.
func (l *Log) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.closed = true
		close(l.changed)
		l.changed = make(chan struct{})
	}
}
