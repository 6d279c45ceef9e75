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

// store is what all spools share: how much they may keep, and where.
type store struct {
	dir     string
	log     *slog.Logger
	reclaim func() bool // makes room by forgetting something; false: nothing left to forget
	memory  budget
	disk    budget
	inline  int   // most that one stream keeps in memory
	file    int64 // most that one stream keeps on disk
	// piece is what a file reserves at a time. It bounds the number of open files
	// too: the whole disk budget is so many pieces.
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

// budget is an amount of bytes that many share.
type budget struct {
	max  int64
	used atomic.Int64
}

func (b *budget) add(n int)  { b.used.Add(int64(n)) }
func (b *budget) give(n int) { b.used.Add(-int64(n)) }

func (b *budget) try(n int64) bool {
	if b.used.Add(n) <= b.max {
		return true
	}
	b.used.Add(-n)
	return false
}

// reserve takes from a budget and has old things forgotten when it is used up. It
// must not be called with a spool's lock held.
func (st *store) reserve(b *budget, n int64) bool {
	for !b.try(n) {
		if !st.reclaim() {
			return false
		}
	}
	return true
}

// bell wakes those who wait for output.
type bell struct {
	mu sync.Mutex
	ch chan struct{}
}

// listen returns a channel that is closed by the next ring. Listen first and look
// then: what is written in between rings.
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

// spool keeps the last bytes of one stream under their offsets: in memory as long
// as they are few, then in a nameless file, in both as a ring in which offset o
// stands at o modulo size. It has one writer, which it neither fails nor delays,
// and any number of readers.
type spool struct {
	st   *store
	bell *bell

	mu       sync.Mutex
	start    int64 // offset of the oldest byte that is kept
	total    int64 // bytes written
	size     int64 // of the ring
	mem      []byte
	f        *os.File // in use instead of mem
	reserved int64    // of the disk budget
	noDisk   bool     // the disk refused: mem may wrap
	gone     bool     // nothing is kept any more
}

func (st *store) spool(b *bell) *spool {
	return &spool{st: st, bell: b, size: int64(st.inline)}
}

// extent tells which offsets are kept.
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

// remember keeps b in memory, or nowhere when nobody wants it; it is false when
// b has to go to the file.
func (sp *spool) remember(b []byte) bool {
	sp.mu.Lock()
	inMemory := !sp.gone && sp.f == nil
	fits := sp.noDisk || len(sp.mem)+len(b) <= sp.st.inline
	sp.mu.Unlock()
	if inMemory && fits && !sp.st.reserve(&sp.st.memory, int64(len(b))) {
		if fits = sp.noDisk; fits {
			sp.st.memory.add(len(b)) // a ring of its own size is the least it needs
		}
	}
	if inMemory && !fits && !sp.spill() {
		return sp.remember(b)
	}
	sp.mu.Lock()
	defer sp.mu.Unlock()
	if sp.gone { // also when that happened just now: what was reserved is given back
		if inMemory && fits {
			sp.st.memory.give(len(b))
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
	sp.st.memory.give(len(b) - (len(sp.mem) - before))
	return true
}

// wrap puts b into the ring in memory. The lock is held.
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

// spill moves what memory holds to a file; it is false when there is none to be
// had, and memory is then all there is.
func (sp *spool) spill() bool {
	f, err := sp.st.create()
	sp.mu.Lock()
	defer sp.mu.Unlock()
	if err == nil {
		_, err = f.WriteAt(sp.mem, 0)
	}
	switch {
	case err != nil:
		sp.st.log.Warn("command output is kept in memory only", "error", err)
		sp.noDisk = true
	case sp.gone: // forgotten meanwhile
		sp.st.discard(f, sp.st.piece)
		return true
	default:
		sp.f, sp.size, sp.reserved = f, sp.st.file, sp.st.piece
		sp.st.memory.give(len(sp.mem))
		sp.mem = nil
		return true
	}
	if f != nil {
		sp.st.discard(f, sp.st.piece)
	}
	return false
}

// create opens a file without a name, so that nothing is left whatever happens,
// and reserves its first piece.
func (st *store) create() (*os.File, error) {
	if !st.reserve(&st.disk, st.piece) {
		return nil, errors.New("running commands use all the space for output")
	}
	f, err := st.temp()
	if err != nil {
		st.disk.give(int(st.piece))
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
	st.disk.give(int(reserved))
}

// record puts b into the file.
func (sp *spool) record(b []byte) {
	sp.grow(int64(len(b)))
	sp.mu.Lock()
	f, size, at := sp.f, sp.size, sp.total
	// Given up before it is overwritten, so that a reader never takes new bytes
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
	if f != nil && err == nil && !sp.gone {
		sp.total += int64(len(b))
		sp.mu.Unlock()
		return
	}
	sp.abandon(err)
	sp.mu.Unlock()
	sp.remember(b)
}

// grow reserves disk for n more bytes. When there is none, the ring stays at what
// it has: nothing has been overwritten yet, so every byte already stands where the
// smaller ring expects it.
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
		if sp.gone {
			sp.mu.Unlock()
			sp.st.disk.give(int(sp.st.piece))
			return
		}
		sp.reserved += sp.st.piece
		reserved = sp.reserved
		sp.mu.Unlock()
	}
}

// abandon gives up a file that cannot be written, a full disk most likely, and
// goes on in memory with what comes. The lock is held.
func (sp *spool) abandon(err error) {
	if sp.gone || sp.f == nil {
		return
	}
	sp.st.log.Warn("command output on disk is given up", "error", err)
	sp.st.discard(sp.f, sp.reserved)
	sp.f, sp.reserved, sp.noDisk = nil, 0, true
	sp.size = int64(sp.st.inline)
	// The ring starts at offset 0 modulo its size; what lies before is not kept.
	sp.mem = make([]byte, sp.total%sp.size, sp.st.inline)
	sp.st.memory.add(len(sp.mem))
	sp.start = sp.total
}

// drop lets go of everything; later writes are only counted.
func (sp *spool) drop() {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	if sp.gone {
		return
	}
	sp.gone = true
	sp.start = sp.total
	if sp.f != nil {
		sp.st.discard(sp.f, sp.reserved)
		sp.f, sp.reserved = nil, 0
	}
	sp.st.memory.give(len(sp.mem))
	sp.mem = nil
}

// slice returns up to n bytes from an offset on, and the offset of the first: a
// later one when what was asked for is no longer kept.
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
			return "", from + int64(n) // dropped meanwhile, or unreadable: not kept any more
		}
		text.Write(buf[:k])
	}
	sp.mu.Lock()
	start := sp.start
	sp.mu.Unlock()
	got := text.String()
	if lost := min(max(start-from, 0), int64(len(got))); lost > 0 { // overwritten while it was read
		return got[lost:], from + lost
	}
	return got, from
}

// recall reads the ring in memory. The lock is held.
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
