// Package learn records the hosts and ports that a sandbox uses. It owns the recording and its end; the caller decides about
// connections.
package learn

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// target is a host and a port.
type target struct {
	host string
	port int
}

// Use is what a sandbox did with one host and port.
type Use struct {
	Host    string
	Port    int
	Allowed int // connections, and plain HTTP requests
	Denied  int
	Failed  int
	Program string // the latest, by the name that it sent
	First   time.Time
	Last    time.Time
}

// Learning is a recording of what a sandbox uses.
type Learning struct {
	Active bool
	Open   bool // connections that no rule matches are allowed
	Began  time.Time
	Until  time.Time
	Uses   []Use // by host and port
	// Dropped is the number of connections to further hosts, which were not recorded.
	Dropped int
}

// MaxUses is the maximum number of hosts and ports in a recording.
const MaxUses = 500

// Learner records what a sandbox uses. The zero value is ready to use.
type Learner struct {
	// Ended is called after a recording has ended.
	Ended func()

	active, open atomic.Bool

	mu    sync.Mutex
	kept  Learning
	uses  map[target]*Use
	timer *time.Timer // ends it
}

// Start records what the sandbox uses for a time. If open is set, connections that no rule matches are
// allowed meanwhile; rules that deny, and the checks of addresses, stay in force. It replaces an
// earlier recording. ended is called if the time is over before Stop.
func (l *Learner) Start(d time.Duration, open bool, ended func()) {
	l.Stop()
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	l.kept = Learning{Active: true, Open: open, Began: now, Until: now.Add(d)}
	l.uses = map[target]*Use{}
	l.open.Store(open)
	l.active.Store(true)
	l.timer = time.AfterFunc(d, func() {
		if l.stop(now) {
			ended()
		}
	})
}

// Stop ends the recording, which stays readable, and closes connections that only it allowed. It
// reports whether there was one.
func (l *Learner) Stop() bool { return l.stop(time.Time{}) }

// stop is Stop for the recording that began at a time, or for any if it is zero: a timer that expires while its
// recording is replaced must not end the new one.
func (l *Learner) stop(began time.Time) bool {
	l.mu.Lock()
	was := l.kept.Active && (began.IsZero() || began.Equal(l.kept.Began))
	if was {
		l.timer.Stop()
		l.kept.Active, l.kept.Until = false, time.Now()
		l.active.Store(false)
		l.open.Store(false)
	}
	l.mu.Unlock()
	if was {
		l.Ended()
	}
	return was
}

// Read returns the recording. Its zero value means that there was none.
func (l *Learner) Read() Learning {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := l.kept
	for _, u := range l.uses {
		out.Uses = append(out.Uses, *u)
	}
	slices.SortFunc(out.Uses, func(a, b Use) int { return cmp.Or(cmp.Compare(a.Host, b.Host), a.Port-b.Port) })
	return out
}

// Active reports whether there is a recording now.
func (l *Learner) Active() bool { return l.active.Load() }

// Open reports whether connections that no rule matches are allowed now.
func (l *Learner) Open() bool { return l.open.Load() }

// Result is the result of a connection.
type Result int

// The results.
const (
	Allowed Result = iota
	Denied
	Failed
)

// Note adds a connection to the recording. The host is a clean name or an address.
func (l *Learner) Note(host string, port int, program string, at time.Time, result Result) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.kept.Active {
		return
	}
	to := target{host, port}
	u := l.uses[to]
	if u == nil {
		if len(l.uses) >= MaxUses {
			l.kept.Dropped++
			return
		}
		u = &Use{Host: host, Port: port, First: at}
		l.uses[to] = u
	}
	switch result {
	case Allowed:
		u.Allowed++
	case Denied:
		u.Denied++
	default:
		u.Failed++
	}
	u.Last, u.Program = at, cmp.Or(program, u.Program)
}
