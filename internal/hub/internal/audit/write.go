package audit

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/cove-sandbox/cove/internal/filesystem/atomicfile"

	"golang.org/x/sys/unix"
)

// maxUnsynced is the maximum size of data that is kept until its sync succeeds.
const maxUnsynced = 4 << 20

// runWriter owns the end of the chain: only it assigns sequence numbers and writes.
func (l *Log) runWriter() {
	for {
		select {
		case <-l.wake:
			l.writeBatch()
		case <-l.stop:
			l.writeBatch()
			return
		}
	}
}

// writeBatch writes all waiting entries. Entries added meanwhile share the next write.
func (l *Log) writeBatch() {
	l.mu.Lock()
	b, lost, full := l.batch, l.lost, len(l.unsynced) >= maxUnsynced
	if len(b.lines) == 0 && lost == 0 {
		l.mu.Unlock()
		return
	}
	l.batch, l.spare = &batch{lines: l.spare, done: make(chan struct{})}, nil
	l.mu.Unlock()

	var err error
	if full {
		err = l.sync()
	}
	if err == nil && l.written.Offset >= l.rotateAt {
		l.rotate()
	}
	lines := b.lines
	if lost > 0 {
		lines = slices.Insert(lines, 0, Line{Kind: KindLost, Count: lost, Text: "the disk was full or too slow"})
	}
	buf := &l.buf
	if buf.Reset(); buf.Cap() > maxUnsynced {
		*buf = bytes.Buffer{}
	}
	start, at, now := l.written, l.written, time.Now().UTC()
	l.ends = l.ends[:0]
	for _, line := range lines {
		at = key(l.cfg.Key).appendLine(buf, at, now, line)
		l.ends = append(l.ends, at)
	}
	n := 0
	if err == nil {
		n, err = l.file.WriteAt(buf.Bytes(), start.Offset)
	}
	// Completely written lines are kept even if the rest failed, because they may have been read.
	good, end := 0, start
	for ; good < len(lines) && l.ends[good].Offset <= start.Offset+int64(n); good++ {
		end = l.ends[good]
	}
	if err != nil {
		// If this fails too, the next write covers the partial line, or Open removes it.
		_ = l.file.Truncate(end.Offset)
		l.delay.Reset(l.cfg.Sync) // to report the loss when the disk has space
	}

	l.mu.Lock()
	defer l.mu.Unlock()
	l.written, l.unsynced = end, append(l.unsynced, buf.Bytes()[:end.Offset-start.Offset]...)
	if lost > 0 && good > 0 {
		l.cfg.Log.Warn("audit entries lost", "count", lost)
		l.lost -= lost
		good--
	}
	if failed := len(b.lines) - good; failed > 0 {
		l.countLost(failed, err)
	}
	clear(lines)
	l.spare = lines[:0]
	b.good, b.err = good, err
	close(b.done)
}

// runSyncer syncs written lines to disk.
func (l *Log) runSyncer() {
	tick := time.NewTicker(l.cfg.Sync)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-l.stop:
			return
		}
		if err := l.sync(); err != nil {
			l.cfg.Log.Error("cannot sync audit log; retrying", "error", err)
		}
	}
}

// sync syncs all written lines to disk and records that in the head.
func (l *Log) sync() error {
	l.syncing.Lock()
	defer l.syncing.Unlock()
	return l.syncLocked()
}

func (l *Log) syncLocked() (err error) {
	l.mu.Lock()
	to, unsynced := l.written, l.unsynced
	l.mu.Unlock()
	if to == l.head.now.position {
		return nil
	}
	defer func() { l.rewrite = err != nil }()
	// After a failed sync the kernel may have dropped the data and reports that only once.
	if l.rewrite {
		if _, err := l.file.WriteAt(unsynced, to.Offset-int64(len(unsynced))); err != nil {
			return err
		}
	}
	if err := syncData(l.file); err != nil {
		return err
	}
	if err := l.head.write(to, l.head.now.Gone); err != nil {
		return err
	}
	l.mu.Lock()
	l.unsynced = l.unsynced[:copy(l.unsynced, l.unsynced[len(unsynced):])]
	l.mu.Unlock()
	return nil
}

// rotate starts a new file once everything in the old one is on disk, so that only the
// last file can be torn. If it cannot, the log continues in the old file.
func (l *Log) rotate() {
	l.syncing.Lock()
	defer l.syncing.Unlock()
	err := l.syncLocked()
	next := position{Mark: l.written.Mark, File: l.written.Seq + 1}
	var f *os.File
	if err == nil {
		f, err = createFile(l.cfg.Dir, next.File)
	}
	if err != nil {
		l.cfg.Log.Error("cannot rotate audit log; retrying", "error", err)
		l.rotateAt = l.written.Offset + l.cfg.MaxBytes/8 + 1
		return
	}
	old := l.file
	l.mu.Lock()
	l.file, l.written, l.rotateAt = f, next, l.cfg.MaxBytes
	l.mu.Unlock()
	if err := errors.Join(old.Close(), l.prune()); err != nil {
		l.cfg.Log.Error("cannot prune audit log; retrying", "error", err)
	}
}

// createFile creates the file for a line that does not exist yet, so any content is stale.
func createFile(dir string, first uint64) (*os.File, error) {
	name := filepath.Join(dir, fileName(first))
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	if err := atomicfile.SyncDir(dir); err != nil {
		// An empty file after the current one would look like the end of the log.
		return nil, errors.Join(err, f.Close(), os.Remove(name))
	}
	return f, nil
}

// prune removes the oldest files. It records that in the head first: after a crash a pruned file may still
// exist, but a file that is missing without a record is an error.
func (l *Log) prune() error {
	files, err := listFiles(l.cfg.Dir)
	if err != nil {
		return err
	}
	gone := l.head.now.Gone
	if n := len(files) - l.cfg.Keep; n > 0 {
		gone = Mark{Seq: files[n] - 1}
	}
	if err := l.head.write(l.written, gone); err != nil {
		return err
	}
	return removeOld(l.cfg.Dir, gone.Seq)
}
