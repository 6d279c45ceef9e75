// Package audit is the hub's audit log: who did what to which sandbox, when, with
// which result, as JSON lines that are only ever appended.
//
// It owns one folder: the files of lines (audit-<first sequence number>.jsonl),
// the head file, the lock, and what a crash tore off. It refuses bodies, headers and secrets by having no
// place for them: an Entry holds names, numbers and a path without its query.
//
// # What the chain proves
//
// Every line carries its sequence number, the hash of the line before it and its
// own hash. The head file says up to which line the log is on disk, and before
// which line old files were given away. So Verify finds, and names, the first
// line that was changed, removed, moved, repeated or cut off.
//
// With a Key the hashes are HMACs: somebody who can write the files but does not
// have the key cannot make a line, nor a head, that passes. Without a key the chain
// only shows accidents and edits by somebody who did not redo the hashes: whoever
// can write the folder can compute the whole chain anew.
//
// Key or not, an older copy of the whole folder, head included, is a log that was
// true once. Only a Mark noted elsewhere (Report.Last, from time to time) and given
// to Verify as Known shows that later lines were there.
//
// # What a crash can take
//
// An Append that returned nil survives the end of the process, kill -9 included; one
// with Durable survives a power cut as well, and any other does after Config.Sync at
// the latest. Lines that were not yet on disk may be missing after a power cut, and
// the head does not claim them: nobody can tell whether they were cut off by the
// crash or by hand. A file that ends below the head is named as truncated. The head
// is itself written after each sync but forced to disk only every Config.Sync: right
// after a power cut it may vouch for up to that much less than is there.
//
// A line that a crash left half written is taken out by the next Open, which says so
// in a line of the kind "torn"; until then Verify reports it as torn by a crash.
//
// # What is never silent
//
// When the disk is full or the queue is, Append returns ErrLost, for durable entries
// and others alike: the caller of a durable one refuses or undoes what it did, the
// caller of another may go on. Each lost entry is counted, logged, and told by a line
// of the kind "lost" as soon as one can be written.
package audit

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"
)

var (
	// ErrLost says that an entry is not in the log and was counted as lost.
	ErrLost = errors.New("the audit entry was lost")
	// ErrUnsure says that an entry is in the log or will be, but not that it is on disk.
	ErrUnsure = errors.New("the audit entry is not known to be on disk")
	// ErrClosed is the answer after Close.
	ErrClosed = errors.New("the audit log is closed")
	// ErrLocked says that another process writes to the folder.
	ErrLocked = errors.New("another process writes this audit log")
	// ErrDamaged says that a log is not as it was left, so nothing is added to it.
	ErrDamaged = errors.New("the audit log is damaged")
)

// Config of a log. Zero values mean the defaults.
type Config struct {
	Dir      string        // made when missing, mode 0700; the files have 0600
	Key      []byte        // makes the hashes HMACs; the same one for the life of the folder
	MaxBytes int64         // a file that has grown this large is followed by a new one; 64 MiB
	Keep     int           // how many files to keep, at least 2; 32
	Sync     time.Duration // entries that are not durable are on disk after this, at most 1 s; 1 s
	Queue    int           // entries that may wait to be written or synced; 4096
	Patience time.Duration // how long an Append waits for the disk; 5 s
	Log      *slog.Logger  // told when entries are lost; none
}

func (c Config) withDefaults() (Config, error) {
	if c.Dir == "" {
		return c, errors.New("open the audit log: no folder given")
	}
	if c.MaxBytes <= 0 {
		c.MaxBytes = 64 << 20
	}
	if c.Keep == 0 {
		c.Keep = 32
	}
	if c.Keep < 2 {
		return c, fmt.Errorf("open the audit log: cannot keep %d files, keep at least 2", c.Keep)
	}
	if c.Sync <= 0 || c.Sync > time.Second {
		c.Sync = time.Second
	}
	if c.Queue <= 0 {
		c.Queue = 4096
	}
	if c.Patience <= 0 {
		c.Patience = 5 * time.Second
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c, nil
}

// Log is an open audit log, its folder's only writer.
type Log struct {
	cfg  Config
	lock *os.File
	pool sync.Pool

	wake, wakeSync     chan struct{} // capacity 1: there is something to do
	stop, stopSync     chan struct{}
	writerEnd, syncEnd chan struct{}
	closing            sync.Once
	closeErr           error

	mu       sync.Mutex
	closed   bool
	queue    []*pending // to be written
	waiters  []*pending // written, to be synced
	written  place
	unsynced []byte // what was written since the last sync, to write again should that fail
	lost     uint64 // not yet told by a line
	lostEver uint64

	// The writer goroutine's own.
	chain    chain
	at       place
	buf      []byte
	spare    []*pending
	rotateAt int64
	torn     *torn

	// syncing is held while files are synced, changed or given away.
	syncing sync.Mutex
	file    *os.File
	files   []uint64 // first sequence number of each kept file
	head    *headFile
	synced  place
	soft    bool // the head is not forced to disk
	redo    bool // the last sync failed: the kernel may have dropped what was unsynced
}

// place is a position in the log, after a line.
type place struct {
	file   uint64 // named by its first sequence number
	offset int64
	seq    uint64
	hash   digest
}

// pending is an entry on its way to the disk.
type pending struct {
	body    []byte
	durable bool
	end     int    // of its line in the batch
	sum     digest // of its line
	done    chan error
	timer   *time.Timer
}

// Open opens the log in a folder, or begins one, and finishes what a crash left. It
// fails with ErrLocked while another process writes there, and with ErrDamaged when
// the newest part is not what the head vouches for; the whole is for Verify to check.
func Open(cfg Config) (*Log, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	l := &Log{
		cfg: cfg, chain: newChain(cfg.Key), rotateAt: cfg.MaxBytes,
		wake: make(chan struct{}, 1), wakeSync: make(chan struct{}, 1),
		stop: make(chan struct{}), stopSync: make(chan struct{}),
		writerEnd: make(chan struct{}), syncEnd: make(chan struct{}),
	}
	l.pool.New = func() any {
		t := time.NewTimer(time.Hour)
		t.Stop()
		return &pending{done: make(chan error, 1), timer: t}
	}
	if err := l.recover(); err != nil {
		l.release()
		return nil, fmt.Errorf("open the audit log in %s: %w", cfg.Dir, err)
	}
	go l.writer()
	go l.syncer()
	return l, nil
}

// Append adds an entry. It returns nil after the line is in the file, and for a durable
// entry after it is on disk. A context that is done ends the wait with ErrUnsure, not the
// entry: the calls of clients that went away are recorded too. Who wants to know gives a
// context of its own, not the request's; Config.Patience bounds the wait in any case.
func (l *Log) Append(ctx context.Context, e Entry) error {
	p := l.pool.Get().(*pending)
	p.body, p.durable = e.appendTo(p.body[:0]), e.Durable
	if err := l.enqueue(p); err != nil {
		l.pool.Put(p)
		return err
	}
	p.timer.Reset(l.cfg.Patience)
	var why error
	select {
	case err := <-p.done:
		p.timer.Stop()
		l.pool.Put(p)
		return err
	case <-ctx.Done():
		p.timer.Stop()
		why = ctx.Err()
	case <-p.timer.C:
		why = fmt.Errorf("the disk took longer than %v", l.cfg.Patience)
	}
	// The writer still has p: it is not for the pool.
	return fmt.Errorf("%w: %w", ErrUnsure, why)
}

func (l *Log) enqueue(p *pending) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return ErrClosed
	}
	if len(l.queue)+len(l.waiters) >= l.cfg.Queue {
		err := fmt.Errorf("%w: %d others wait for the disk already", ErrLost, l.cfg.Queue)
		l.lose(1, err)
		return err
	}
	l.queue = append(l.queue, p)
	poke(l.wake)
	return nil
}

// lose counts entries that are in no file. The caller holds mu.
func (l *Log) lose(n uint64, why error) {
	if l.lost == 0 {
		l.cfg.Log.Error("audit entries are being lost", "error", why)
	}
	l.lost += n
	l.lostEver += n
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Stats of an open log.
type Stats struct {
	Seq     uint64 // of the latest line
	Synced  uint64 // of the latest line known to be on disk
	Lost    uint64 // entries since Open
	Waiting int    // entries that wait for the disk
}

// Stats tells how the log does, for metrics.
func (l *Log) Stats() Stats {
	l.mu.Lock()
	defer l.mu.Unlock()
	return Stats{Seq: l.written.seq, Synced: l.synced.seq, Lost: l.lostEver, Waiting: len(l.queue) + len(l.waiters)}
}

// Close writes and syncs what waits and gives the folder free. It may be called more
// than once.
func (l *Log) Close() error {
	l.closing.Do(func() {
		l.mu.Lock()
		l.closed = true
		l.mu.Unlock()
		close(l.stop)
		<-l.writerEnd
		close(l.stopSync)
		<-l.syncEnd
		err := l.flush(true)
		if l.lost > 0 {
			err = errors.Join(err, fmt.Errorf("%w: %d, which no line tells", ErrLost, l.lost))
		}
		if err = errors.Join(err, l.release()); err != nil {
			l.closeErr = fmt.Errorf("close the audit log: %w", err)
		}
	})
	return l.closeErr
}

// release closes what is open. Closing the lock's file gives it free.
func (l *Log) release() error {
	var errs []error
	if l.file != nil {
		errs = append(errs, l.file.Close())
	}
	if l.head != nil {
		errs = append(errs, l.head.f.Close())
	}
	if l.lock != nil {
		errs = append(errs, l.lock.Close())
	}
	return errors.Join(errs...)
}
