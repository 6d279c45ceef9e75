package runner

import (
	"cmp"
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/cove-sandbox/cove/internal/provider/local/internal/disk"
	"github.com/cove-sandbox/cove/internal/provider/local/internal/tree"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// watcher reports the limits that the kernel enforces silently, and enforces those that
// it does not.
//
// Where the filesystem keeps quotas it enforces the disk limit, and the watcher only
// says that a disk is full. Elsewhere the disk is measured and the limit enforced here.
// A single file cannot grow beyond it in the first place (see isolate.Limits.FileSize).
// In a sandbox above its limit everything but the server is killed, so that the server
// can say what happened and delete files. If it still grows it is stopped, with its
// disk kept. Freezing would keep the owner from deleting files, and a mount with open
// files cannot be made read-only.
type watcher struct {
	runner *Runner
	last   atomic.Pointer[tree.Size] // of the whole filesystem
}

// Adding up a disk takes time. It is done when the whole filesystem has grown by a
// part of what the sandbox has left, which is cheap to know, and now and then in any
// case, within a share of the time.
const (
	lookEvery  = 100 * time.Millisecond
	oomEvery   = time.Second
	retryEvery = 5 * time.Second
	walkEvery  = 30 * time.Second
	walkShare  = 20 // walks take at most one part in so many of the time
	growthPart = 4
)

// usage is what the watcher knows of one sandbox.
type usage struct {
	size     tree.Size
	whole    tree.Size // of the whole filesystem when it was measured
	at       time.Time // zero: not measured in this run
	culled   bool      // everything but the server was killed for this excess
	told     bool      // that the disk is full was reported
	oomKills int64     // reported so far
}

func (w *watcher) run(ctx context.Context) {
	r := w.runner
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	var nextWalk, nextOOM, nextRetry time.Time // no walk without need, no look at memory, and no retry before
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now, whole := time.Now(), r.disks.Usage()
		w.last.Store(&whole)
		for _, id := range r.table.IDs(sandbox.Running) {
			if ctx.Err() != nil {
				return
			}
			// One that another call holds has its turn next time.
			row, ok := r.table.TryAcquire(id)
			if !ok {
				continue
			}
			began := time.Now()
			if row.Data.run != nil && now.After(nextOOM) {
				w.reportOOM(row)
				w.adjustShare(row, now)
			}
			if row.Data.run != nil && w.checkDisk(ctx, row, whole, now.After(nextWalk)) {
				nextWalk = time.Now().Add(walkShare * time.Since(began))
			}
			row.Release()
		}
		if now.After(nextRetry) {
			r.cleaner.retry(ctx)
			nextRetry = time.Now().Add(retryEvery)
		}
		if now.After(nextOOM) {
			nextOOM = now.Add(oomEvery)
			r.spares.trim(now)
		}
	}
}

// unused is the usage of a new disk, which need not be measured.
func (w *watcher) unused() usage {
	u := usage{at: time.Now()}
	if whole := w.last.Load(); whole != nil {
		u.whole = *whole
	}
	return u
}

// checkDisk enforces the limit of one disk and reports whether it had to measure it.
// Idle allows a measurement without need.
func (w *watcher) checkDisk(ctx context.Context, row *sandbox.Row[*box], whole tree.Size, idle bool) (walked bool) {
	b := row.Data
	u, limit := &b.usage, w.limit(b)
	due := u.at.IsZero() || u.culled || idle && time.Since(u.at) > walkEvery
	if !due && whole.Bytes-u.whole.Bytes <= (limit-u.size.Bytes)/growthPart &&
		whole.Files-u.whole.Files <= (disk.MaxFiles(limit)-u.size.Files)/growthPart {
		return false
	}
	before := u.size
	s, err := w.measure(b, 2*limit)
	if err != nil {
		w.runner.cfg.Log.Warn("cannot measure the disk of a sandbox", "sandbox", b.rec.Sandbox.ID, "error", err)
		return true
	}
	u.size, u.whole, u.at = s, whole, time.Now()
	if ok, _ := w.runner.disks.HasQuota(); ok {
		w.reportFull(row, limit)
		return true
	}
	excess, err := w.excess(b, limit)
	switch {
	case err != nil:
	case excess == "":
		u.culled = false
	case !u.culled:
		u.culled = true
		err = b.group.KillExcept(ctx, b.rec.Init.Has)
		row.Publish(sandbox.Exceeded, "all programs but the server were killed: "+excess)
		// What they wrote before they were killed is not growth.
		if after, failed := w.measure(b, 2*limit); failed == nil {
			u.size = after
		}
	case s.Bytes > before.Bytes || s.Files > before.Files || s.Bytes > 2*limit || s.Files > disk.MaxFiles(2*limit):
		err = w.runner.stop(ctx, row, "stopped: "+excess)
	}
	if err != nil {
		w.runner.cfg.Log.Error("cannot enforce the disk limit of a sandbox", "sandbox", b.rec.Sandbox.ID, "error", err)
	}
	return true
}

// fullPart is how much of a limit, in parts of so many, may be left when a disk is full.
const fullPart = 64

// reportFull reports, once, that the disk is full.
func (w *watcher) reportFull(row *sandbox.Row[*box], limit int64) {
	u := &row.Data.usage
	full := u.size.Bytes >= limit-limit/fullPart
	if full && !u.told {
		row.Publish(sandbox.Exceeded, fmt.Sprintf("its disk is full: %d bytes of its limit of %d are used; delete "+
			"files or raise the limit", u.size.Bytes, limit))
	}
	u.told = full
}

// excess says which limit of disk or volumes is exceeded; empty if none is.
func (w *watcher) excess(b *box, limit int64) (string, error) {
	if excess := disk.Excess(b.usage.size, limit); excess != "" {
		return excess, nil
	}
	spec := b.rec.Sandbox.Spec
	var names []string
	for _, v := range spec.Volumes {
		if !v.ReadOnly {
			names = append(names, v.Name)
		}
	}
	return w.runner.cfg.Volumes.Excess(spec.Owner, names)
}

// limit is the disk limit of a sandbox.
func (w *watcher) limit(b *box) int64 {
	return cmp.Or(b.rec.Sandbox.Spec.Resources.Disk, w.runner.cfg.Defaults.Disk)
}

// measure adds up what the sandbox itself has written, up to a limit; 0 is none.
func (w *watcher) measure(b *box, limit int64) (tree.Size, error) {
	return w.runner.disks.Measure(b.rec.Disk, limit)
}

// checkRoom refuses to start a sandbox far above its limit, which would only be
// stopped again. Up to a tenth is accepted, so that files can be deleted.
func (w *watcher) checkRoom(b *box) error {
	if ok, _ := w.runner.disks.HasQuota(); ok {
		return nil // it cannot grow
	}
	limit, s := w.limit(b), b.usage.size
	if s == (tree.Size{}) {
		var err error
		if s, err = w.measure(b, 2*limit); err != nil {
			return err
		}
	}
	s.TooDeep = false
	if excess := disk.Excess(s, limit+limit/10); excess != "" {
		return fmt.Errorf("%w: %s", sandbox.ErrExhausted, excess)
	}
	return nil
}

// reportOOM reports processes that were killed because memory ran out.
func (w *watcher) reportOOM(row *sandbox.Row[*box]) {
	u := &row.Data.usage
	if n := row.Data.group.OOMKills(); n > u.oomKills {
		u.oomKills = n
		row.Publish(sandbox.Exceeded, fmt.Sprintf("out of memory: %d processes have been killed; raise the memory limit", n))
	}
}
