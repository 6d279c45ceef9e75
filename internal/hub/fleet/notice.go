package fleet

import (
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/network/egress"
)

// Limits of events about one sandbox's connections. The events of all sandboxes share one log, so a hostile
// program must not be able to evict those of others.
const (
	noticeBurst  = 10
	noticePause  = 6 * time.Second // between events after the burst
	noticeRepeat = time.Minute     // between events about the same target
	noticeKept   = 64              // targets
)

// notices decides which connections of a sandbox become events.
type notices struct {
	mu       sync.Mutex
	full     time.Time            // when the burst is available again
	reported map[string]time.Time // by target
	skipped  int                  // connections without event since the last event
}

// take reports whether a connection becomes an event, and how many before it did not.
func (n *notices) take(now time.Time, target string) (skipped int, ok bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.full.Before(now) {
		n.full = now
	}
	last, known := n.reported[target]
	if known && now.Sub(last) < noticeRepeat || n.full.Sub(now) > (noticeBurst-1)*noticePause {
		n.skipped++
		return 0, false
	}
	if n.reported == nil || len(n.reported) >= noticeKept {
		n.reported = map[string]time.Time{}
	}
	n.reported[target] = now
	n.full = n.full.Add(noticePause)
	skipped, n.skipped = n.skipped, 0
	return skipped, true
}

// reporter reports the connections of a sandbox.
type reporter struct {
	*Fleet
	id string
}

// connected records a connection. Denied ones become events.
func (f reporter) connected(r egress.Record) {
	f.counts.egress(1, r.Verdict)
	f.Log.Info("egress", "sandbox", f.id, "protocol", r.Protocol, "program", r.Program, "host", r.Host, "port", r.Port,
		"address", r.Address, "verdict", r.Verdict, "rule", r.Rule, "reason", r.Reason)
	if r.Verdict != egress.Refused {
		return
	}
	b := f.known(f.id)
	if b == nil {
		return
	}
	target := net.JoinHostPort(r.Host, strconv.Itoa(r.Port))
	skipped, ok := b.notices.take(r.Time, target)
	if !ok {
		return
	}
	sb := b.seen()
	f.History.Add("denied", r.Time, sb, denial(sb.Spec.Name, r, skipped))
}

// asked adds an event for a host that waits for approval.
func (f reporter) asked(p egress.Pending) {
	b := f.known(f.id)
	if b == nil {
		return
	}
	sb := b.seen()
	at := net.JoinHostPort(p.Host, strconv.Itoa(p.Port))
	text := fmt.Sprintf("a connection to %s waits for approval until %s UTC; run cove egress allow %s %[1]s, with --once to add no rule, "+
		"or cove egress deny %[3]s %[1]s", at, p.Until.UTC().Format(time.TimeOnly), sb.Spec.Name)
	if p.Program != "" {
		text = fmt.Sprintf("program %q: %s", p.Program, text)
	}
	f.History.Add("pending", p.Since, sb, text)
}

// denial explains a denied connection to the owner of a sandbox.
func denial(name string, r egress.Record, skipped int) string {
	text := strings.TrimSuffix(r.Reason, "; "+r.Fix)
	if r.Program != "" {
		text = fmt.Sprintf("program %q: %s", r.Program, text)
	}
	if r.Fix != "" {
		text += "; " + strings.Replace(r.Fix, "NAME", name, 1)
	}
	if skipped > 0 {
		text += fmt.Sprintf(" (%d other denied connections have no event)", skipped)
	}
	return text
}
