// Package audit is the hub's audit log: who did what to which sandbox, when, and with
// which result, as JSON lines that are only ever appended.
//
// It owns one directory: the files of lines (audit-<first sequence number>.jsonl), the
// head file, the lock, and what was cut off after a crash (torn-<sequence number>). It
// refuses bodies, headers and secrets by having no field for them.
//
// # What the chain proves
//
// Every line carries its sequence number, the hash of the previous line and its own
// hash. The head file records the last line known to be on disk and the last line that
// was pruned. So Verify names the first line that was changed, removed, moved,
// duplicated or cut off.
//
// With a Key the hashes are HMACs: without the key nobody can forge a line or a head.
// Without a key the chain reveals accidents, and edits by somebody who did not
// recompute the hashes.
//
// With or without a key, an older copy of the whole directory verifies, because it was
// valid once. Only a Mark stored elsewhere (Report.Last) and passed as Check.Known shows
// that later lines existed.
//
// # What a crash can take
//
// An entry whose Append returned nil survives the end of the process, kill -9 included,
// and after Config.Sync a power failure too. A noted entry may be lost with the process
// during the few milliseconds in which it waits for others. Open removes a line that was
// half written and reports it in a line of kind "torn"; until then Verify reports it.
//
// # What is never silent
//
// An entry that finds the queue or the disk full is counted, logged, and reported by a
// line of kind "lost" as soon as one can be written. Append also returns ErrLost, so
// that the caller can undo what it did.
package audit

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"
)

var (
	// ErrLost means that the entry is not in the log and was counted as lost.
	ErrLost = errors.New("audit entry lost")
	// ErrPending means that the entry is queued but was not written in time.
	ErrPending = errors.New("audit entry not written yet")
	// ErrClosed is returned after Close.
	ErrClosed = errors.New("audit log is closed")
	// ErrLocked means that another process has the log open.
	ErrLocked = errors.New("audit log is in use by another process")
	// ErrDamaged means that the log is not as it was left; nothing is appended to it.
	ErrDamaged = errors.New("audit log is damaged")
	// ErrKey means that the log was written with a key and none was given.
	ErrKey = errors.New("audit log was written with a key; provide the key")
)

// Config of a log. Zero values select the defaults.
type Config struct {
	Dir      string        // created with mode 0700 if missing; its files have mode 0600
	Key      []byte        // turns the hashes into HMACs; never changes for a directory
	MaxBytes int64         // size at which a file is rotated; 64 MiB
	Keep     int           // number of files to keep, at least 2; 32
	Sync     time.Duration // how long a written line may stay unsynced, at most 1 s; 1 s
	Queue    int           // maximum number of entries waiting to be written; 4096
	Patience time.Duration // how long Append waits; 5 s
	Log      *slog.Logger  // discards by default
}

func (c Config) withDefaults() Config {
	c.MaxBytes = cmp.Or(c.MaxBytes, 64<<20)
	c.Keep = max(2, cmp.Or(c.Keep, 32))
	c.Sync = min(time.Second, cmp.Or(c.Sync, time.Second))
	c.Queue = cmp.Or(c.Queue, 4096)
	c.Patience = cmp.Or(c.Patience, 5*time.Second)
	c.Log = cmp.Or(c.Log, slog.New(slog.DiscardHandler))
	return c
}

// Log is an open audit log, the only writer of its directory.
//
// Entries gather in a batch. The writer goroutine turns a batch into lines and writes
// them at once; the syncer goroutine brings written lines to disk, so that a slow disk
// does not hold up the writer.
type Log struct {
	cfg   Config
	lock  *os.File
	wake  chan struct{} // capacity 1: the writer has something to do
	delay *time.Timer   // wakes the writer for notes

	stop  chan struct{}
	work  sync.WaitGroup
	close func() error // once

	mu        sync.Mutex
	closed    bool
	batch     *batch
	spare     []Line   // memory for the next batch
	written   position // the end of the log
	unsynced  []byte   // written since the last sync, kept to write again if that fails
	lost      uint64   // not yet reported by a line
	lostTotal uint64

	// Used by the writer goroutine alone.
	buf      bytes.Buffer // of a batch
	ends     []position   // of its lines
	rotateAt int64

	// syncing is held during a sync and a rotation.
	syncing sync.Mutex
	file    *os.File // changed by the writer alone
	head    headFile
	rewrite bool // the last sync failed, and the kernel may have dropped unsynced
}

// batch is the entries that share a write.
type batch struct {
	lines []Line
	done  chan struct{} // closed when the fields below are set
	good  int           // number of lines that are in the file
	err   error         // why the others are not
}

const (
	// gatherTime is how long a note waits for others to share its write.
	gatherTime = 5 * time.Millisecond
	// gatherSize is the number of entries that are written without waiting for more.
	gatherSize = 256
)

// Open opens or creates the log in a directory and repairs what a crash left. It fails
// with ErrLocked while another process has the log open, and with ErrDamaged if the end
// of the log does not match the head; only Verify checks the whole log.
func Open(cfg Config) (*Log, error) {
	l := &Log{
		cfg:  cfg.withDefaults(),
		wake: make(chan struct{}, 1), stop: make(chan struct{}),
		batch: &batch{done: make(chan struct{})},
	}
	l.rotateAt, l.close = l.cfg.MaxBytes, sync.OnceValue(l.shutDown)
	l.delay = time.AfterFunc(gatherTime, l.wakeWriter)
	if err := l.recover(); err != nil {
		return nil, errors.Join(fmt.Errorf("open audit log in %q: %w", cfg.Dir, err), l.release())
	}
	l.work.Go(l.runWriter)
	l.work.Go(l.runSyncer)
	return l, nil
}

// Append adds an entry and returns nil when its line is in the file. It waits no longer
// than Config.Patience; after ErrPending the entry will still be written or counted as lost.
func (l *Log) Append(e Entry) error {
	b, i, err := l.add(Line{Entry: e.bounded()}, true)
	if err != nil {
		return err
	}
	select {
	case <-b.done:
	case <-time.After(l.cfg.Patience):
		return fmt.Errorf("%w: the disk took longer than %v", ErrPending, l.cfg.Patience)
	}
	if i >= b.good {
		return fmt.Errorf("%w: %w", ErrLost, b.err)
	}
	return nil
}

// Note adds an entry without waiting for it to be written. Entries keep their order
// across Note and Append.
func (l *Log) Note(e Entry) {
	_, _, _ = l.add(Line{Entry: e.bounded()}, false) // a loss is counted and reported by a line
}

// add puts a line into the current batch and returns its index there.
func (l *Log) add(line Line, urgent bool) (*batch, int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	b, i := l.batch, len(l.batch.lines)
	if l.closed {
		return nil, 0, ErrClosed
	}
	if i >= l.cfg.Queue {
		err := fmt.Errorf("%w: %d entries are waiting for the disk", ErrLost, i)
		l.countLost(1, err)
		return nil, 0, err
	}
	b.lines = append(b.lines, line)
	if urgent || len(b.lines) >= gatherSize {
		l.wakeWriter()
	} else if i == 0 {
		l.delay.Reset(gatherTime)
	}
	return b, i, nil
}

// countLost counts entries that are in no file. The caller holds mu.
func (l *Log) countLost(n int, why error) {
	if l.lost == 0 {
		l.cfg.Log.Error("losing audit entries", "error", why)
	}
	l.lost += uint64(n)
	l.lostTotal += uint64(n)
}

func (l *Log) wakeWriter() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// Lost returns the number of entries lost since Open.
func (l *Log) Lost() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lostTotal
}

// Last returns the last line in the file: stored elsewhere, it shows later whether the
// log is an older copy.
func (l *Log) Last() Mark {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.written.Mark
}

// Close writes and syncs what is waiting and releases the directory. It is idempotent.
func (l *Log) Close() error { return l.close() }

func (l *Log) shutDown() error {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.delay.Stop()
	close(l.stop)
	l.work.Wait()
	err := l.sync()
	if l.lost > 0 {
		err = errors.Join(err, fmt.Errorf("%w: %d entries without a line that reports them", ErrLost, l.lost))
	}
	if err = errors.Join(err, l.release()); err != nil {
		return fmt.Errorf("close audit log: %w", err)
	}
	return nil
}

// release closes what is open; closing the lock file releases the lock.
func (l *Log) release() (err error) {
	for _, f := range []*os.File{l.file, l.head.file, l.lock} {
		if f != nil {
			err = errors.Join(err, f.Close())
		}
	}
	return err
}
