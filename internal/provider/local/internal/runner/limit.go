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

// watcher reports limits that the kernel enforces silently, and enforces limits that the kernel does not.
//
// If the filesystem has quotas, it enforces the disk limit, and the watcher only reports a full disk. Otherwise the
// watcher measures disks and enforces the limit. A single file can never exceed it (see isolate.Limits.FileSize). In a
// sandbox above its limit, all programs except the server are killed, so that the owner can delete files. If the disk
// still grows, the sandbox is stopped and keeps its disk. Freezing would prevent the owner from deleting files, and a
// mount with open files cannot become read-only.
type watcher struct {
	runner *Runner
	last   atomic.Pointer[tree.Size] // of the whole filesystem
}

// Measuring a disk is slow. It happens when the whole filesystem, whose usage is cheap to query, has grown by a part of
// the space that the sandbox has left. It also happens periodically, for a limited share of the time.
const (
	pollInterval    = 100 * time.Millisecond
	oomInterval     = time.Second
	retryInterval   = 5 * time.Second
	measureInterval = 30 * time.Second
	measureShare    = 20 // periodic measurements take at most 1/20 of the time
	growthPart      = 4  // measure after growth by 1/4 of the free space
)

// usage is the state of the watcher for one sandbox.
type usage struct {
	size     tree.Size
	whole    tree.Size // of the whole filesystem at that time
	at       time.Time // of the measurement; zero: not measured in this run
	killed   bool      // all programs except the server were killed for this excess
	reported bool      // the full disk was reported
	oomKills int64     // reported so far
}

func (w *watcher) run(ctx context.Context) {
	r := w.runner
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	var nextMeasure, nextOOM, nextRetry time.Time // earliest time of periodic work
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
			// A sandbox that another call uses is checked next time.
			row, ok := r.table.TryAcquire(id)
			if !ok {
				continue
			}
			began := time.Now()
			if row.Data.run != nil && now.After(nextOOM) {
				w.reportOOM(row)
				w.adjustShare(row, now)
			}
			if row.Data.run != nil && w.checkDisk(ctx, row, whole, now.After(nextMeasure)) {
				nextMeasure = time.Now().Add(measureShare * time.Since(began))
			}
			row.Release()
		}
		if now.After(nextRetry) {
			r.cleaner.retry(ctx)
			nextRetry = time.Now().Add(retryInterval)
		}
		if now.After(nextOOM) {
			nextOOM = now.Add(oomInterval)
			r.spares.trim(now)
		}
	}
}

// unused is the usage of a new disk, which does not have to be measured.
func (w *watcher) unused() usage {
	u := usage{at: time.Now()}
	if whole := w.last.Load(); whole != nil {
		u.whole = *whole
	}
	return u
}

// checkDisk enforces the limit of one disk and reports whether it measured the disk. Periodic allows a measurement
// without growth.
func (w *watcher) checkDisk(ctx context.Context, row *sandbox.Row[*box], whole tree.Size, periodic bool) (measured bool) {
	b := row.Data
	u, limit := &b.usage, w.limit(b)
	due := u.at.IsZero() || u.killed || periodic && time.Since(u.at) > measureInterval
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
		u.killed = false
	case !u.killed:
		u.killed = true
		err = b.group.KillExcept(ctx, b.rec.Init.Has)
		row.Publish(sandbox.Exceeded, "all programs except the server were killed: "+excess)
		// Data that they wrote before is not growth.
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

// fullPart defines a full disk: less than 1/64 of the limit is free.
const fullPart = 64

// reportFull reports a full disk once.
func (w *watcher) reportFull(row *sandbox.Row[*box], limit int64) {
	u := &row.Data.usage
	full := u.size.Bytes >= limit-limit/fullPart
	if full && !u.reported {
		row.Publish(sandbox.Exceeded, fmt.Sprintf("its disk is full: %d bytes of its limit of %d are used; delete "+
			"files or raise the limit", u.size.Bytes, limit))
	}
	u.reported = full
}

// excess describes which limit of the disk or of volumes is exceeded; empty if none.
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

// limit returns the disk limit of a sandbox.
func (w *watcher) limit(b *box) int64 {
	return cmp.Or(b.rec.Sandbox.Spec.Resources.Disk, w.runner.cfg.Defaults.Disk)
}

// measure returns the size of the data that the sandbox has written. It stops at limit; 0 is no limit.
func (w *watcher) measure(b *box, limit int64) (tree.Size, error) {
	return w.runner.disks.Measure(b.rec.Disk, limit)
}

// checkUsage returns ErrExhausted for a sandbox far above its limit, which would be stopped again. An excess of up to
// a tenth is accepted, so that the owner can delete files.
func (w *watcher) checkUsage(b *box) error {
	if ok, _ := w.runner.disks.HasQuota(); ok {
		return nil // the filesystem enforces the limit
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

// reportOOM reports processes that the kernel killed because of the memory limit, also as the message of
// the sandbox: the caller of a killed program sees only a signal.
func (w *watcher) reportOOM(row *sandbox.Row[*box]) {
	u := &row.Data.usage
	if n := row.Data.group.OOMKills(); n > u.oomKills {
		u.oomKills = n
		message := fmt.Sprintf("out of memory: processes killed: %d; raise the memory limit", n)
		row.Publish(sandbox.Exceeded, message)
		if err := w.runner.change(row, func(sb *sandbox.Sandbox) { sb.Message = message }); err != nil {
			w.runner.cfg.Log.Warn("cannot record that a sandbox ran out of memory", "sandbox", row.Data.rec.Sandbox.ID, "error", err)
		}
	}
}
