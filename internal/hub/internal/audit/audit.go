// Package audit owns the hub's audit log: append-only JSON lines with caller, operation, sandbox, time and
// result.
//
// It owns one directory: the files of lines (audit-<first sequence number>.jsonl), the head file, the lock,
// and incomplete lines of a crash (torn-<sequence number>). Bodies, headers and secrets are never logged,
// because an entry has no field for them.
//
// # What the chain proves
//
// Every line carries its sequence number, the hash of the previous line and its own
// hash. The head file records the last line known to be on disk and the last line that
// was pruned. So Verify reports the first line that was changed, removed, moved,
// duplicated or truncated.
//
// With a Key the hashes are HMACs: lines and heads cannot be forged without the key. Without a key the chain
// detects accidents, and edits without recomputed hashes.
//
// With or without a key, an older copy of the whole directory is valid. Only a Mark that is stored elsewhere
// (Report.Last) and passed as Check.Known proves that later lines existed.
//
// # What a crash can lose
//
// An entry whose Append returned nil survives the end of the process, including kill -9, and after
// Config.Sync a power failure. A noted entry can be lost with the process while it waits for others, a few
// milliseconds. Open removes a partially written line and reports it in a line of kind "torn"; until then
// Verify reports it.
//
// # What is never silent
//
// An entry that is lost because the queue or the disk is full is counted, logged, and reported by a line of
// kind "lost" when the disk has space. Append also returns ErrLost, so that the caller can undo its change.
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
	// ErrDamaged means that the log was changed; nothing is appended to it.
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
// Entries are collected in a batch. The writer goroutine writes the lines of a batch at once. The syncer
// goroutine syncs written lines to disk, so that a slow disk does not delay the writer.
type Log struct {
	cfg   Config
	lock  *os.File
	wake  chan struct{} // capacity 1: notifies the writer
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
	lost      uint64   // not reported by a line yet
	lostTotal uint64

	// Used only by the writer goroutine.
	buf      bytes.Buffer // of a batch
	ends     []position   // of its lines
	rotateAt int64

	// syncing is held during a sync and a rotation.
	syncing sync.Mutex
	file    *os.File // changed only by the writer
	head    headFile
	rewrite bool // the last sync failed, and the kernel may have dropped unsynced
}

// batch is a group of entries that share a write.
type batch struct {
	lines []Line
	done  chan struct{} // closed when the fields below are set
	good  int           // number of lines that are in the file
	err   error         // why the others are not in the file
}

const (
	// gatherTime is how long a note waits for others to share its write.
	gatherTime = 5 * time.Millisecond
	// gatherSize is the number of entries that are written without waiting for more.
	gatherSize = 256
)

// Open opens or creates the log in a directory and repairs its end after a crash. It fails with ErrLocked
// while another process has the log open, and with ErrDamaged if the end of the log does not match the head.
// Only Verify checks the whole log.
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

// Append adds an entry and returns nil when its line is in the file. It waits at most Config.Patience; after
// ErrPending the entry is still written later, or counted as lost.
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

// Note adds an entry asynchronously. Entries keep their order across Note and Append.
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
		l.cfg.Log.Error("audit entries lost", "error", why)
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

// Last returns the mark of the last line in the file. Stored elsewhere, it detects later that the log was
// replaced by an older copy.
func (l *Log) Last() Mark {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.written.Mark
}

// Close writes and syncs waiting entries and releases the directory. It is idempotent.
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
