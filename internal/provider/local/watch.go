package local

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/sandbox"
)

// The disk limit. No filesystem that is common on machines can bound a folder,
// so it is measured and enforced. A file cannot grow beyond the limit in the first
// place (see isolate.Limits.FileSize). A sandbox found above it has everything
// inside killed but its server, which can then say what happened and delete
// files; one that still grows is stopped, with its disk kept. Freezing would keep
// the owner from helping himself, and a mount with open files cannot be made
// read-only.

// How often is looked. Adding up a disk costs time, so it is done when the whole
// filesystem has grown by a part of what the sandbox has left, which is a cheap
// question, and now and then in any case, within a share of the time.
const (
	lookEvery  = 100 * time.Millisecond
	oomEvery   = time.Second
	walkEvery  = 30 * time.Second
	walkShare  = 20 // at most one part in so many
	growthPart = 4
)

// bytesPerFile bounds the number of files: a sandbox must not use up the
// filesystem's inodes with empty ones.
const bytesPerFile = 4 << 10

// metaPerFile is less than what btrfs, which does not count files, needs for one.
const metaPerFile = 256

// usage is what the watcher knows of one sandbox.
type usage struct {
	size   size
	whole  size      // of the whole filesystem when it was measured
	at     time.Time // zero: not in this run
	culled bool      // everything but the server was killed for this excess
	ooms   int64     // kills for lack of memory that were told
}

// watch looks after the limits that the kernel enforces without telling us, or
// does not enforce at all.
func (p *Provider) watch(ctx context.Context) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	var rest, oom time.Time // no walk without need, no look at memory, before
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now, whole := time.Now(), p.whole()
		p.lastWhole.Store(&whole)
		for _, id := range p.table.IDs(sandbox.Running) {
			if ctx.Err() != nil {
				return
			}
			// One that is in a call's hands has its turn next time.
			row, ok := p.table.TryAcquire(id)
			if !ok {
				continue
			}
			began := time.Now()
			if row.Data.run != nil && now.After(oom) {
				p.tellOOM(row)
			}
			if row.Data.run != nil && p.look(ctx, row, whole, now.After(rest)) {
				rest = time.Now().Add(walkShare * time.Since(began))
			}
			row.Release()
		}
		if now.After(oom) {
			oom = now.Add(oomEvery)
			p.trim(now)
		}
	}
}

// whole is how much of the disks' filesystem is taken.
func (p *Provider) whole() size {
	if data, meta, ok := p.store.usageOf(); ok {
		return size{bytes: data + meta, files: meta / metaPerFile}
	}
	var st unix.Statfs_t
	if unix.Statfs(p.store.dir, &st) != nil {
		return size{}
	}
	return size{bytes: int64(st.Blocks-st.Bfree) * st.Bsize, files: int64(st.Files - st.Ffree)}
}

// unused is the usage of a disk that was just made. It need not be added up.
func (p *Provider) unused() usage {
	u := usage{at: time.Now()}
	if whole := p.lastWhole.Load(); whole != nil {
		u.whole = *whole
	}
	return u
}

// look checks one disk and says whether it had to add it up.
func (p *Provider) look(ctx context.Context, row *sandbox.Row[*box], whole size, idle bool) bool {
	b := row.Data
	u, limit := &b.usage, p.disk(b)
	due := u.at.IsZero() || u.culled || idle && time.Since(u.at) > walkEvery
	if !due && whole.bytes-u.whole.bytes <= (limit-u.size.bytes)/growthPart && whole.files-u.whole.files <= (limit/bytesPerFile-u.size.files)/growthPart {
		return false
	}
	before := u.size
	s, err := p.measure(b, 2*limit)
	if err != nil {
		p.cfg.Log.Warn("cannot measure a sandbox's disk", "sandbox", b.rec.Sandbox.ID, "err", err)
		return true
	}
	u.size, u.whole, u.at = s, whole, time.Now()
	why := s.over(limit)
	switch {
	case why == "":
		u.culled = false
	case !u.culled:
		u.culled = true
		err = b.group.KillBut(ctx, b.rec.Init)
		row.Tell(sandbox.Exceeded, "all programs but the server were killed: "+why)
	case s.bytes > before.bytes || s.files > before.files || s.bytes > 2*limit || s.files > 2*limit/bytesPerFile:
		err = p.stopped(ctx, row, "stopped: "+why)
	}
	if err != nil {
		p.cfg.Log.Error("cannot hold a sandbox to its disk limit", "sandbox", b.rec.Sandbox.ID, "err", err)
	}
	return true
}

// disk is the sandbox's limit.
func (p *Provider) disk(b *box) int64 {
	return cmp.Or(b.rec.Sandbox.Spec.Resources.Disk, p.cfg.Defaults.Disk)
}

// over says which limit a size exceeds.
func (s size) over(limit int64) string {
	switch {
	case s.bytes > limit:
		return fmt.Sprintf("its disk holds %d bytes, more than its limit of %d; delete files or raise the limit", s.bytes, limit)
	case s.files > limit/bytesPerFile:
		return fmt.Sprintf("its disk holds %d files, more than its limit of %d; delete files or raise the disk limit", s.files, limit/bytesPerFile)
	case s.deep:
		return fmt.Sprintf("its folders are nested deeper than %d; delete them", maxDepth)
	}
	return ""
}

// measure adds up what the sandbox itself has written, not what its disk started
// from; see the function measure.
func (p *Provider) measure(b *box, limit int64) (size, error) {
	layer, err := measure(p.store.path(b.upper()), limit)
	if err != nil {
		return layer, err
	}
	run, err := measure(b.path("run"), limit)
	return size{layer.bytes + run.bytes, layer.files + run.files, layer.deep || run.deep}, err
}

// room refuses to start a sandbox far above its limit, which would only be
// stopped again. Up to a tenth is let through, so that files can be deleted.
func (p *Provider) room(b *box) error {
	limit, s := p.disk(b), b.usage.size
	if s == (size{}) {
		var err error
		if s, err = p.measure(b, 2*limit); err != nil {
			return err
		}
	}
	s.deep = false
	if why := s.over(limit + limit/10); why != "" {
		return fmt.Errorf("%w: %s", sandbox.ErrExhausted, why)
	}
	return nil
}

// tellOOM tells of processes that were killed for lack of memory.
func (p *Provider) tellOOM(row *sandbox.Row[*box]) {
	u := &row.Data.usage
	if n := row.Data.group.OOMKills(); n > u.ooms {
		u.ooms = n
		row.Tell(sandbox.Exceeded, fmt.Sprintf("out of memory: %d processes were killed so far; raise the memory limit", n))
	}
}
