package audit

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// maxUnsynced bounds what is remembered for a sync that may fail.
const maxUnsynced = 4 << 20

// writer owns the end of the chain: it alone gives out sequence numbers and writes
// lines. All entries that wait while it writes share the next write.
func (l *Log) writer() {
	defer close(l.writerEnd)
	for {
		select {
		case <-l.wake:
			for l.commit() {
			}
		case <-l.stop:
			for l.commit() {
			}
			return
		}
	}
}

// syncer brings what was written to disk, at once when somebody waits for it. All
// durable entries that are written while it syncs share the next sync.
func (l *Log) syncer() {
	defer close(l.syncEnd)
	tick := time.NewTicker(l.cfg.Sync)
	defer tick.Stop()
	for {
		select {
		case <-l.wakeSync:
			_ = l.flush(false) // the waiters have the error
		case <-tick.C:
			if err := l.flush(true); err != nil {
				l.cfg.Log.Error("audit log not synced, will try again", "error", err)
			}
			l.mu.Lock()
			if l.lost > 0 {
				poke(l.wake)
			}
			l.mu.Unlock()
		case <-l.stopSync:
			return
		}
	}
}

// commit writes everything that waits and tells whether there may be more.
func (l *Log) commit() bool {
	l.mu.Lock()
	batch, lost, full := l.queue, l.lost, len(l.unsynced) >= maxUnsynced
	l.queue = l.spare[:0]
	l.mu.Unlock()
	if len(batch) == 0 && lost == 0 && l.torn == nil {
		l.spare = batch
		return false
	}
	var err error
	if full {
		err = l.flush(true)
	}
	if err == nil && l.at.offset >= l.rotateAt {
		l.rotate()
	}
	start, own := l.at, l.encode(batch, lost)
	n := 0
	if err == nil {
		n, err = l.file.WriteAt(l.buf, start.offset)
	}
	good := l.settle(start, n, own, batch)
	if err != nil {
		// A line of which only a part found room goes. Should this fail too, the next
		// write covers it, or the next Open takes it out.
		_ = l.file.Truncate(l.at.offset)
	}
	l.publish(batch, good, own, lost, err)
	clear(batch)
	l.spare = batch[:0]
	return err == nil
}

// owned is the part of a batch that the log says about itself.
type owned struct {
	end int
	seq uint64
	sum digest
}

// encode makes the lines of a batch, from where the log ends.
func (l *Log) encode(batch []*pending, lost uint64) owned {
	now := time.Now()
	l.buf = l.buf[:0]
	own := owned{seq: l.at.seq, sum: l.at.hash}
	if l.torn != nil {
		own.seq++
		l.buf, own.sum = l.chain.appendLine(l.buf, own.seq, own.sum, now, ownLine(KindTorn, l.torn.bytes, l.torn.text))
	}
	if lost > 0 {
		own.seq++
		l.buf, own.sum = l.chain.appendLine(l.buf, own.seq, own.sum, now, ownLine(KindLost, lost, "the disk was full or too slow"))
	}
	own.end = len(l.buf)
	seq, prev := own.seq, own.sum
	for _, p := range batch {
		seq++
		l.buf, prev = l.chain.appendLine(l.buf, seq, prev, now, p.body)
		p.end, p.sum = len(l.buf), prev
	}
	return own
}

// settle moves the end of the log behind the last line of which n bytes of the batch
// hold all, and returns how many entries of the batch that makes. Whole lines are never
// taken back, since somebody may have read them. The log's own lines count as one.
func (l *Log) settle(start place, n int, own owned, batch []*pending) (good int) {
	if n < own.end {
		return 0
	}
	at := place{file: start.file, offset: start.offset + int64(own.end), seq: own.seq, hash: own.sum}
	for _, p := range batch {
		if p.end > n {
			break
		}
		good++
		at.offset, at.hash = start.offset+int64(p.end), p.sum
	}
	at.seq += uint64(good)
	l.at = at
	return good
}

// publish tells everybody how the write went.
func (l *Log) publish(batch []*pending, good int, own owned, lost uint64, err error) {
	l.mu.Lock()
	l.unsynced = append(l.unsynced, l.buf[:l.at.offset-l.written.offset]...)
	if l.at != l.written && own.end > 0 {
		if l.lost -= lost; lost > 0 {
			l.cfg.Log.Warn("audit entries were lost", "count", lost)
		}
		l.torn = nil
	}
	l.written = l.at
	if bad := len(batch) - good; bad > 0 {
		l.lose(uint64(bad), err)
	}
	for _, p := range batch[:good] {
		if p.durable {
			l.waiters = append(l.waiters, p)
		}
	}
	if len(l.waiters) > 0 {
		poke(l.wakeSync)
	}
	l.mu.Unlock()
	for i, p := range batch {
		switch {
		case i >= good:
			p.done <- fmt.Errorf("%w: %w", ErrLost, err)
		case !p.durable:
			p.done <- nil
		}
	}
	if cap(l.buf) > maxUnsynced {
		l.buf = nil
	}
}

// flush makes everything that was written by now survive a power cut and then vouches
// for it in the head, which hard forces to disk as well.
func (l *Log) flush(hard bool) error {
	l.syncing.Lock()
	defer l.syncing.Unlock()
	l.mu.Lock()
	to, waiters, unsynced := l.written, l.waiters, l.unsynced
	l.waiters = nil
	l.mu.Unlock()
	if to == l.synced && len(waiters) == 0 {
		if hard && l.soft {
			l.writeHead(l.head.now.Gone, true)
		}
		return nil
	}
	size := to.offset - l.synced.offset
	err := l.syncFile(unsynced[:size])
	if err == nil {
		l.mu.Lock()
		l.synced = to
		l.unsynced = l.unsynced[:copy(l.unsynced, l.unsynced[size:])]
		l.mu.Unlock()
		l.writeHead(l.head.now.Gone, hard)
	} else {
		err = fmt.Errorf("%w: %w", ErrUnsure, err)
	}
	for _, p := range waiters {
		p.done <- err
	}
	return err
}

// syncFile syncs the current file. After a failure the kernel may have dropped pages and
// forgotten it: what was not synced is written once more. The caller holds syncing.
func (l *Log) syncFile(unsynced []byte) error {
	if l.redo {
		if _, err := l.file.WriteAt(unsynced, l.synced.offset); err != nil {
			return err
		}
	}
	err := syncData(l.file)
	l.redo = err != nil
	return err
}

// writeHead vouches for what is synced. A failure costs no entry, only the proof that
// the end was there, so it is logged. The caller holds syncing.
func (l *Log) writeHead(gone Mark, hard bool) bool {
	s := l.synced
	err := l.head.write(head{Seq: s.seq, Hash: s.hash.String(), File: s.file, Offset: s.offset, Gone: gone})
	if err == nil && hard {
		err = syncData(l.head.f)
	}
	if err != nil {
		l.cfg.Log.Error("audit head not written", "error", err)
	}
	l.soft = !hard || err != nil
	return err == nil
}

// rotate begins a new file after everything in the old one is on disk and vouched for,
// so that only the last file can be torn. When there is no new file to be had the old
// one is used further.
func (l *Log) rotate() {
	first := l.at.seq + 1
	var f *os.File
	err := l.flush(true)
	l.syncing.Lock()
	defer l.syncing.Unlock()
	if err == nil {
		f, err = createFile(l.cfg.Dir, first)
	}
	if err != nil {
		l.cfg.Log.Error("audit log not rotated, will try again", "error", err)
		l.rotateAt = l.at.offset + l.cfg.MaxBytes/8 + 1
		return
	}
	l.rotateAt = l.cfg.MaxBytes
	old := l.file
	l.file, l.files = f, append(l.files, first)
	l.at.file, l.at.offset = first, 0
	l.mu.Lock()
	l.written, l.synced = l.at, l.at
	l.mu.Unlock()
	if err := old.Close(); err != nil {
		l.cfg.Log.Error("close a rotated audit file", "error", err)
	}
	if err := l.prune(); err != nil {
		l.cfg.Log.Error("give away old audit files", "error", err)
	}
}

// createFile makes the file of lines that were never there, so nothing in it is ours.
func createFile(dir string, first uint64) (*os.File, error) {
	name := filepath.Join(dir, fileName(first))
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syncDir(dir); err != nil {
		// An empty file behind the one in use would look like the end of the log.
		return nil, errors.Join(err, f.Close(), os.Remove(name))
	}
	return f, nil
}

// prune gives away the oldest files. The head says so first: files that are still there
// after a crash are expected, files that are gone without its word are not. The caller
// holds syncing.
func (l *Log) prune() error {
	for len(l.files) > l.cfg.Keep {
		gone, err := l.before(l.files[1])
		if err != nil {
			return err
		}
		if !l.writeHead(gone, true) {
			return nil
		}
		if err := os.Remove(filepath.Join(l.cfg.Dir, fileName(l.files[0]))); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		l.files = l.files[1:]
	}
	return nil
}

// before returns the line before a file, which the file's own first line names.
func (l *Log) before(first uint64) (Mark, error) {
	f, err := os.Open(filepath.Join(l.cfg.Dir, fileName(first)))
	if err != nil {
		return Mark{}, err
	}
	defer f.Close()
	line, _, err := newScanner(f, 0).next()
	if err != nil {
		return Mark{}, fmt.Errorf("read %s: %w", f.Name(), err)
	}
	c := newChain(l.cfg.Key)
	k, err := c.open(line)
	if err != nil || k.seq != first {
		return Mark{}, fmt.Errorf("%w: the first line of %s was changed", ErrDamaged, f.Name())
	}
	return Mark{Seq: first - 1, Hash: k.prev.String()}, nil
}
