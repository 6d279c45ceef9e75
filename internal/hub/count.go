package hub

import (
	"time"

	"github.com/cove-sandbox/cove/internal/metric"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// counts is what a hub counts. Labels are few and fixed.
type counts struct {
	created func(n float64, values ...string)
	took    func(d time.Duration, values ...string)
	woken   func(n float64, values ...string)
	ended   func(n float64, values ...string)
	egress  func(n float64, values ...string)
	refused func(n float64, values ...string)
	skipped func(n float64, values ...string)
}

func newCounts(m *metric.Registry) counts {
	if m == nil {
		m = metric.New() // nobody reads it
	}
	return counts{
		created: m.Counter("cove_creates_total", "Creates by result.", "result"),
		took:    m.Histogram("cove_create_seconds", "Time from the request to a ready sandbox."),
		woken:   m.Counter("cove_wakes_total", "Sandboxes woken by a request, by result.", "result"),
		ended:   m.Counter("cove_timeouts_total", "Sandboxes whose time or idle time was up, by what was done.", "done"),
		refused: m.Counter("cove_quota_refusals_total", "What was refused since a tenant's limit was reached, by limit.", "limit"),
		skipped: m.Counter("cove_audit_skipped_total", "Refused requests of strangers that were too many to write down."),
		egress:  m.Counter("cove_egress_total", "Connections out of sandboxes, by verdict.", "verdict"),
	}
}

// states counts sandboxes as last seen.
func (h *Hub) states() map[string]float64 {
	out := map[string]float64{}
	for _, s := range []sandbox.State{sandbox.Creating, sandbox.Running, sandbox.Paused, sandbox.Stopped, sandbox.Failed, sandbox.Deleting} {
		out[string(s)] = 0
	}
	for _, b := range h.all() {
		out[string(b.seen().State)]++
	}
	return out
}
