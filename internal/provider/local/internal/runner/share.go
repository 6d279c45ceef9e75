package runner

import (
	"cmp"
	"time"

	"github.com/cove-sandbox/cove/internal/sandbox"
)

// A sandbox that continuously wants a CPU, and uses more than its share, gets a lower priority than mostly idle ones:
// otherwise each step of a neighbour's short command would wait for its time slice. Busy sandboxes share the remaining
// CPU time equally. A sandbox that is idle again, or gets less than half its share, gets its normal priority back.
const (
	busyPart = 2 // busy: it wants more than 1/2 of a CPU
	idlePart = 8 // idle: it wants less than 1/8 of a CPU
)

// demand is the demand of a sandbox for CPU time.
type demand struct {
	used, waited time.Duration // so far
	at           time.Time
	busy         bool
}

// adjustShare measures a sandbox and changes its share if it became busy or idle.
func (w *watcher) adjustShare(row *sandbox.Row[*box], now time.Time) {
	b := row.Data
	last, next := b.demand, demand{used: b.group.CPU(), waited: b.group.Waited(), at: now, busy: b.demand.busy}
	b.demand = next
	used, passed := next.used-last.used, now.Sub(last.at)
	if next.used < 0 || last.at.IsZero() || used < 0 || passed <= 0 {
		return
	}
	wanted := used + max(0, next.waited-last.waited)
	share := cmp.Or(b.rec.Sandbox.Spec.Resources.CPU, w.runner.cfg.Defaults.CPU)
	granted := passed * time.Duration(share) / 1000
	busy := wanted > passed/busyPart && used > granted
	if last.busy {
		busy = wanted > passed/idlePart && used > granted/2
	}
	if busy == last.busy {
		return
	}
	if err := b.group.Yield(busy, share); err != nil {
		w.runner.cfg.Log.Warn("cannot change the CPU share of a sandbox", "sandbox", b.rec.Sandbox.ID, "error", err)
		return
	}
	b.demand.busy = busy
}
