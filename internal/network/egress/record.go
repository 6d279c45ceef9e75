package egress

import (
	"errors"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Record is a connection or plain HTTP request that a sandbox made or attempted.
type Record struct {
	Time     time.Time
	Protocol string // http, connect, socks5, tcp (a program without a proxy), dns (a name that was refused)
	Host     string
	Port     int
	Address  string // of the host
	Program  string // name that the program gave itself, as its User-Agent; it can be false
	Verdict  string // allowed, denied, failed
	Rule     string // that allowed or denied it; empty: another reason
	Reason   string // why it was denied or failed, with the fix
	Fix      string // what the owner of the sandbox can do
	Brokered bool   // credentials were added
	Private  bool   // to a peer
	// The fields below are set when the connection has ended.
	Ended bool
	Up    int64
	Down  int64
	Took  time.Duration
}

// The verdicts.
const (
	Allowed = "allowed"
	Refused = "denied"
	Failed  = "failed"
)

// record sets the verdict of an attempt and stores it.
func (p *Proxy) record(rec *Record, err error) {
	switch {
	case err == nil:
		rec.Verdict = Allowed
		p.verdicts[0].Add(1)
	case Denied(err):
		rec.deny(err)
		rec.Ended = true
		p.verdicts[1].Add(1)
	default:
		rec.Verdict, rec.Reason, rec.Ended = Failed, err.Error(), true
		p.verdicts[2].Add(1)
	}
	p.note(rec)
	p.ring.add(rec)
	if p.cfg.Observe != nil {
		p.cfg.Observe(*rec)
	}
}

// deny sets the verdict of a refused connection.
func (rec *Record) deny(err error) {
	rec.Verdict, rec.Reason = Refused, err.Error()
	if e, ok := errors.AsType[*deniedError](err); ok {
		rec.Rule, rec.Fix = e.rule, e.fix
	}
}

// maxShown is the maximum length of unchecked input in records.
const maxShown = 80

// printable shortens unchecked input and escapes everything except printable ASCII characters.
func printable(s string) string {
	cut := ""
	if len(s) > maxShown {
		s, cut = s[:maxShown], "…"
	}
	if strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r > '~' }) {
		quoted := strconv.QuoteToASCII(s)
		s = quoted[1 : len(quoted)-1]
	}
	return s + cut
}

// ring keeps the latest records. Records of open connections can change.
type ring struct {
	mu   sync.Mutex
	max  int
	kept []*Record
	next int
}

func (r *ring) add(rec *Record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.kept) < r.max {
		r.kept = append(r.kept, rec)
		return
	}
	r.kept[r.next] = rec
	r.next = (r.next + 1) % r.max
}

// end completes a record.
func (r *ring) end(rec *Record, up, down int64) {
	r.change(rec, func() { rec.Ended, rec.Up, rec.Down, rec.Took = true, up, down, time.Since(rec.Time) })
}

// change changes a record while readers may exist.
func (r *ring) change(_ *Record, f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
}

func (r *ring) list() []Record {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]Record, 0, len(r.kept))
	for i := range r.kept {
		out = append(out, *r.kept[(r.next+i)%len(r.kept)])
	}
	return out
}
