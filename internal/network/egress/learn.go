package egress

import (
	"cmp"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cove-sandbox/cove/internal/sandbox"
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

// maxUses is the maximum number of hosts and ports in a recording.
const maxUses = 500

// Learner records what a sandbox uses.
type Learner struct {
	active, open atomic.Bool
	ended        func() // called after a recording has ended

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
		l.ended()
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

// note adds a connection to the recording.
func (l *Learner) note(rec *Record) {
	if !l.active.Load() || rec.Port == 0 || !isTarget(rec.Host) {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.kept.Active {
		return
	}
	at := target{rec.Host, rec.Port}
	u := l.uses[at]
	if u == nil {
		if len(l.uses) >= maxUses {
			l.kept.Dropped++
			return
		}
		u = &Use{Host: rec.Host, Port: rec.Port, First: rec.Time}
		l.uses[at] = u
	}
	switch rec.Verdict {
	case Allowed:
		u.Allowed++
	case Refused:
		u.Denied++
	default:
		u.Failed++
	}
	u.Last, u.Program = rec.Time, cmp.Or(rec.Program, u.Program)
}

// isTarget reports whether a host is a clean name or an address, as opposed to unchecked input. It excludes
// names that command lines read as a flag.
func isTarget(host string) bool {
	if _, err := netip.ParseAddr(host); err == nil {
		return true
	}
	clean, err := CleanName(host)
	return err == nil && clean == host && host[0] != '-'
}

// Names of what allows a connection that no rule matches.
const (
	ruleLearning = "learning mode"
	ruleApproved = "approved once"
)

// policy decides which connections are allowed: the rules decide first, then approvals and the learning mode.
type policy struct {
	rules     atomic.Pointer[Rules]
	Learner   Learner
	Approvals Approvals
}

// decide returns what allows connections to a host, or why they are refused.
func (p *policy) decide(host string, port int) (rule string, err error) {
	rule, err = p.rules.Load().decide(host, port)
	switch {
	case !isUnmatched(err):
		return rule, err
	case p.Learner.open.Load():
		return ruleLearning, nil
	case p.rules.Load().mode == sandbox.NetworkAsk && p.Approvals.approved(host, port):
		return ruleApproved, nil
	}
	return "", err
}

// isUnmatched reports whether a connection was refused because no rule matches.
func isUnmatched(err error) bool {
	e, ok := errors.AsType[*deniedError](err)
	return ok && e.unmatched
}
