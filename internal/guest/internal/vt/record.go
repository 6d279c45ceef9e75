package vt

import (
	"bytes"
	"encoding/binary"
	"math/bits"
)

// maxCut is the maximum distance from a cut to the end of a line, where the text is cut
// instead.
const maxCut = 4 << 10

// record keeps the start and the end of a text.
type record struct {
	limit   int
	begun   bool // a row was added, perhaps an empty one
	head    []byte
	closed  bool     // head is full
	tail    [][]byte // blocks, oldest first; all except the last are full
	size    int      // bytes in tail
	spare   []byte   // a block for reuse
	dropped int64    // characters
}

func (r *record) reset() {
	*r = record{limit: r.limit, head: r.head[:0]}
	if cap(r.head) > 64<<10 {
		r.head = nil
	}
}

// block returns the size of the tail's blocks. The tail is dropped in blocks.
func (r *record) block() int { return clamp(r.limit/16, 256, 64<<10) }

func (r *record) write(p []byte) {
	if !r.closed {
		room := r.limit/2 - len(r.head)
		if len(p) <= room {
			r.head = append(r.head, p...)
			return
		}
		r.closed = true
		r.head = append(r.head, p[:room]...)
		cut := cutBefore(r.head)
		r.push(r.head[cut:])
		r.head = r.head[:cut]
		p = p[room:]
	}
	r.push(p)
}

// push appends to the tail and drops the oldest blocks that exceed the limit.
func (r *record) push(p []byte) {
	for len(p) > 0 {
		last := len(r.tail) - 1
		if last < 0 || len(r.tail[last]) == cap(r.tail[last]) {
			b := r.spare
			r.spare = nil
			if b == nil {
				b = make([]byte, 0, r.block())
			}
			r.tail = append(r.tail, b[:0])
			last++
		}
		b := r.tail[last]
		n := min(len(p), cap(b)-len(b))
		r.tail[last] = append(b, p[:n]...)
		r.size += n
		p = p[n:]
		for r.size-len(r.tail[0]) >= r.limit/2 && len(r.tail) > 1 {
			r.spare = r.tail[0]
			r.dropped += characters(r.spare)
			r.size -= len(r.spare)
			copy(r.tail, r.tail[1:])
			r.tail = r.tail[:len(r.tail)-1]
		}
	}
}

// text returns the kept text followed by more.
func (r *record) text(more []byte) Text {
	end := append(bytes.Join(r.tail, nil), more...)
	if r.dropped == 0 {
		return Text{Head: string(append(r.head[:len(r.head):len(r.head)], end...))}
	}
	cut := cutAfter(end)
	return Text{Head: string(r.head), Dropped: r.dropped + characters(end[:cut]), Tail: string(end[cut:])}
}

// cutBefore returns where to cut near the end of p: after the last newline, or between
// characters.
func cutBefore(p []byte) int {
	near := max(0, len(p)-maxCut)
	if i := bytes.LastIndexByte(p[near:], '\n'); i >= 0 {
		return near + i + 1
	}
	end := len(p)
	for end > 0 && p[end-1]&0xc0 == 0x80 {
		end--
	}
	if end > 0 && p[end-1] >= 0xc0 {
		end--
	}
	return end
}

// cutAfter returns where to cut near the start of p: after the first newline, or between
// characters.
func cutAfter(p []byte) int {
	if i := bytes.IndexByte(p[:min(len(p), maxCut)], '\n'); i >= 0 {
		return i + 1
	}
	start := 0
	for start < len(p) && p[start]&0xc0 == 0x80 {
		start++
	}
	return start
}

// characters counts characters by their first bytes, so that pieces of a text add up.
func characters(p []byte) int64 {
	n := len(p)
	for len(p) >= 8 {
		// One bit for each byte of the form 10xxxxxx, which continues a character.
		x := binary.LittleEndian.Uint64(p)
		n -= bits.OnesCount64(x >> 7 &^ (x >> 6) & 0x0101010101010101)
		p = p[8:]
	}
	for _, b := range p {
		if b&0xc0 == 0x80 {
			n--
		}
	}
	return int64(n)
}
