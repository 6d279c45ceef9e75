package bash

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
)

// store is shared by all spools: their limits and the folder of their files.
type store struct {
	dir     string
	log     *slog.Logger
	reclaim func() bool // frees space by discarding old output; false: there is none
	memory  budget
	disk    budget
	inline  int   // maximum bytes of one stream in memory
	file    int64 // maximum bytes of one stream on disk
	// piece is how many bytes a file reserves at a time. It also limits the number of open
	// files, because each reserves at least one piece of the disk budget.
	piece int64
	bufs  sync.Pool
}

const bufSize = 128 << 10

func newStore(dir string, log *slog.Logger, reclaim func() bool) *store {
	st := &store{dir: dir, log: log, reclaim: reclaim, inline: 256 << 10, file: 128 << 20, piece: 4 << 20}
	st.memory.max = 32 << 20
	st.disk.max = 1 << 30
	st.bufs.New = func() any { return new([bufSize]byte) }
	return st
}

// budget is a shared limit of bytes.
type budget struct {
	max  int64
	used atomic.Int64
}

func (b *budget) add(n int)     { b.used.Add(int64(n)) }
func (b *budget) release(n int) { b.used.Add(-int64(n)) }

func (b *budget) try(n int64) bool {
	if b.used.Add(n) <= b.max {
		return true
	}
	b.used.Add(-n)
	return false
}

// reserve reserves bytes of a budget. If the budget is exhausted, it discards old output.
// It must not be called with a spool's lock held.
func (st *store) reserve(b *budget, n int64) bool {
	for !b.try(n) {
		if !st.reclaim() {
			return false
		}
	}
	return true
}

// bell wakes goroutines that wait for output.
type bell struct {
	mu sync.Mutex
	ch chan struct{}
}

// listen returns a channel that is closed by the next ring. Subscribe before reading so
// that no write is missed.
func (b *bell) listen() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ch == nil {
		b.ch = make(chan struct{})
	}
	return b.ch
}

func (b *bell) ring() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ch != nil {
		close(b.ch)
		b.ch = nil
	}
}

// spool keeps the last bytes of one stream by their offsets, first in memory, then in an
// unlinked file. Both are rings in which offset o is stored at o modulo size. It has one
// writer, which it never delays or fails, and any number of readers.
type spool struct {
	st   *store
	bell *bell

	mu       sync.Mutex
	start    int64 // offset of the oldest byte that is kept
	total    int64 // bytes written
	size     int64 // of the ring
	mem      []byte
	f        *os.File // used instead of mem; nil: memory is used
	reserved int64    // bytes of the disk budget
	noDisk   bool     // the disk is not available: mem may wrap
	dropped  bool     // no output is kept
}

func (st *store) spool(b *bell) *spool {
	return &spool{st: st, bell: b, size: int64(st.inline)}
}

// extent returns the range of the kept offsets.
func (sp *spool) extent() (start, total int64) {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	return sp.start, sp.total
}

// Write keeps b.
func (sp *spool) Write(b []byte) (int, error) {
	n := len(b)
	for len(b) > 0 {
		part := b[:min(len(b), sp.st.inline)]
		b = b[len(part):]
		if !sp.remember(part) {
			sp.record(part)
		}
	}
	sp.bell.ring()
	return n, nil
}

// remember keeps b in memory, or discards it if the spool was dropped. It returns false if
// b must be written to the file.
func (sp *spool) remember(b []byte) bool {
	sp.mu.Lock()
	inMemory := !sp.dropped && sp.f == nil
	fits := sp.noDisk || len(sp.mem)+len(b) <= sp.st.inline
	sp.mu.Unlock()
	if inMemory && fits && !sp.st.reserve(&sp.st.memory, int64(len(b))) {
		if fits = sp.noDisk; fits {
			sp.st.memory.add(len(b)) // keeps at least one full ring
		}
	}
	if inMemory && !fits && !sp.spill() {
		return sp.remember(b)
	}
	sp.mu.Lock()
	defer sp.mu.Unlock()
	if sp.dropped { // perhaps since the reservation, which is then released
		if inMemory && fits {
			sp.st.memory.release(len(b))
		}
		sp.total += int64(len(b))
		sp.start = sp.total
		return true
	}
	if sp.f != nil {
		return false
	}
	before := len(sp.mem)
	sp.wrap(b)
	sp.st.memory.release(len(b) - (len(sp.mem) - before))
	return true
}

// wrap writes b to the ring in memory. The lock is held.
func (sp *spool) wrap(b []byte) {
	for len(b) > 0 {
		at := sp.total % sp.size
		var n int
		if at == int64(len(sp.mem)) {
			n = int(min(int64(len(b)), sp.size-at))
			sp.mem = append(sp.mem, b[:n]...)
		} else {
			n = copy(sp.mem[at:], b)
		}
		sp.total += int64(n)
		b = b[n:]
	}
	sp.start = max(sp.start, sp.total-sp.size)
}

// spill moves the bytes in memory to a file. It returns false if no file can be created;
// the stream then stays in memory.
func (sp *spool) spill() bool {
	f, err := sp.st.create()
	sp.mu.Lock()
	defer sp.mu.Unlock()
	if err == nil {
		_, err = f.WriteAt(sp.mem, 0)
	}
	switch {
	case err != nil:
		sp.st.log.Warn("cannot write command output to disk; keeping it in memory", "error", err)
		sp.noDisk = true
	case sp.dropped:
		sp.st.discard(f, sp.st.piece)
		return true
	default:
		sp.f, sp.size, sp.reserved = f, sp.st.file, sp.st.piece
		sp.st.memory.release(len(sp.mem))
		sp.mem = nil
		return true
	}
	if f != nil {
		sp.st.discard(f, sp.st.piece)
	}
	return false
}

// create creates an unlinked file, which needs no cleanup, and reserves its first piece.
func (st *store) create() (*os.File, error) {
	if !st.reserve(&st.disk, st.piece) {
		return nil, errors.New("running commands use all disk space for output")
	}
	f, err := st.temp()
	if err != nil {
		st.disk.release(int(st.piece))
		return nil, fmt.Errorf("create output file: %w", err)
	}
	return f, nil
}

func (st *store) temp() (*os.File, error) {
	f, err := os.CreateTemp(st.dir, "output-*")
	if errors.Is(err, os.ErrNotExist) {
		if err = os.MkdirAll(st.dir, 0o700); err == nil {
			f, err = os.CreateTemp(st.dir, "output-*")
		}
	}
	if err != nil {
		return nil, err
	}
	if err := os.Remove(f.Name()); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func (st *store) discard(f *os.File, reserved int64) {
	f.Close()
	st.disk.release(int(reserved))
}

// record writes b to the file.
func (sp *spool) record(b []byte) {
	sp.grow(int64(len(b)))
	sp.mu.Lock()
	f, size, at := sp.f, sp.size, sp.total
	// Move start before the bytes are overwritten, so that a reader never mistakes new bytes
	// for old ones.
	sp.start = max(sp.start, at+int64(len(b))-size)
	sp.mu.Unlock()
	var err error
	if f != nil {
		for done := int64(0); done < int64(len(b)) && err == nil; {
			pos := (at + done) % size
			n := min(int64(len(b))-done, size-pos)
			_, err = f.WriteAt(b[done:done+n], pos)
			done += n
		}
	}
	sp.mu.Lock()
	if f != nil && err == nil && !sp.dropped {
		sp.total += int64(len(b))
		sp.mu.Unlock()
		return
	}
	sp.abandon(err)
	sp.mu.Unlock()
	sp.remember(b)
}

// grow reserves disk for n more bytes. If none is left, the ring is limited to its current
// size. No byte was overwritten yet, so all are already at their place in the smaller ring.
func (sp *spool) grow(n int64) {
	sp.mu.Lock()
	need := min(sp.total+n, sp.size)
	reserved := sp.reserved
	sp.mu.Unlock()
	for reserved < need {
		if !sp.st.reserve(&sp.st.disk, sp.st.piece) {
			sp.mu.Lock()
			sp.size = sp.reserved
			sp.mu.Unlock()
			return
		}
		sp.mu.Lock()
		if sp.dropped {
			sp.mu.Unlock()
			sp.st.disk.release(int(sp.st.piece))
			return
		}
		sp.reserved += sp.st.piece
		reserved = sp.reserved
		sp.mu.Unlock()
	}
}

// abandon discards a file that cannot be written, probably because the disk is full.
// Later output is kept in memory. The lock is held.
func (sp *spool) abandon(err error) {
	if sp.dropped || sp.f == nil {
		return
	}
	sp.st.log.Warn("cannot write command output to disk; discarding it", "error", err)
	sp.st.discard(sp.f, sp.reserved)
	sp.f, sp.reserved, sp.noDisk = nil, 0, true
	sp.size = int64(sp.st.inline)
	// The ring starts at offset 0 modulo its size; earlier bytes are not kept.
	sp.mem = make([]byte, sp.total%sp.size, sp.st.inline)
	sp.st.memory.add(len(sp.mem))
	sp.start = sp.total
}

// drop discards all output. Later writes are only counted.
func (sp *spool) drop() {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	if sp.dropped {
		return
	}
	sp.dropped = true
	sp.start = sp.total
	if sp.f != nil {
		sp.st.discard(sp.f, sp.reserved)
		sp.f, sp.reserved = nil, 0
	}
	sp.st.memory.release(len(sp.mem))
	sp.mem = nil
}

// slice returns up to n bytes from an offset, and the offset of the first byte, which is
// higher than requested if earlier bytes are no longer kept.
func (sp *spool) slice(from int64, n int) (string, int64) {
	sp.mu.Lock()
	from = max(from, sp.start)
	n = int(max(min(int64(n), sp.total-from), 0))
	f, size := sp.f, sp.size
	if f == nil {
		defer sp.mu.Unlock()
		return sp.recall(from, n), from
	}
	sp.mu.Unlock()
	var text strings.Builder
	text.Grow(n)
	buf := sp.st.bufs.Get().(*[bufSize]byte)
	defer sp.st.bufs.Put(buf)
	for text.Len() < n {
		pos := (from + int64(text.Len())) % size
		k := min(int64(n-text.Len()), size-pos, bufSize)
		if _, err := f.ReadAt(buf[:k], pos); err != nil {
			return "", from + int64(n) // dropped or unreadable: no longer kept
		}
		text.Write(buf[:k])
	}
	sp.mu.Lock()
	start := sp.start
	sp.mu.Unlock()
	got := text.String()
	if lost := min(max(start-from, 0), int64(len(got))); lost > 0 { // overwritten during the read
		return got[lost:], from + lost
	}
	return got, from
}

// recall reads from the ring in memory. The lock is held.
func (sp *spool) recall(from int64, n int) string {
	if n == 0 {
		return ""
	}
	at := from % sp.size
	first := min(int64(n), sp.size-at)
	if int64(n) == first {
		return string(sp.mem[at : at+first])
	}
	return string(sp.mem[at:]) + string(sp.mem[:int64(n)-first])
}
