package shell

import (
	"bytes"
	"unicode/utf8"
)

// ringSize is how many bytes of recent output a session keeps for new viewers.
const ringSize = 1 << 20

// ring keeps the last bytes of a stream by their offsets.
// The zero value is ready; it grows as needed.
type ring struct {
	buf        []byte
	start, end int64 // range of the kept bytes: [start, end)
}

func (r *ring) write(p []byte) {
	if skip := len(p) - ringSize; skip > 0 {
		r.end += int64(skip)
		r.start = r.end
		p = p[skip:]
	}
	r.grow(int(r.end-r.start) + len(p))
	for len(p) > 0 {
		n := copy(r.buf[r.end%int64(len(r.buf)):], p)
		r.end += int64(n)
		p = p[n:]
	}
	r.start = max(r.start, r.end-int64(len(r.buf)))
}

func (r *ring) grow(need int) {
	size := max(len(r.buf), 4<<10)
	for size < need && size < ringSize {
		size *= 2
	}
	if size == len(r.buf) {
		return
	}
	kept := r.read(nil, r.start, len(r.buf))
	r.buf = make([]byte, size)
	at := r.start
	for len(kept) > 0 {
		n := copy(r.buf[at%int64(size):], kept)
		at += int64(n)
		kept = kept[n:]
	}
}

// read appends at most limit bytes from an offset that must be kept.
func (r *ring) read(dst []byte, from int64, limit int) []byte {
	for limit > 0 && from < r.end {
		i := int(from % int64(len(r.buf)))
		n := min(limit, len(r.buf)-i, int(r.end-from))
		dst = append(dst, r.buf[i:i+n]...)
		from += int64(n)
		limit -= n
	}
	return dst
}

// entry returns the offset at which a viewer starts to read: the start of the stream, of a
// line if one starts soon, or of a character.
func (r *ring) entry() int64 {
	if r.start == 0 {
		return 0
	}
	near := r.read(nil, r.start, 16<<10)
	if i := bytes.IndexByte(near, '\n'); i >= 0 {
		return r.start + int64(i) + 1
	}
	i := 0
	for i < len(near) && i < utf8.UTFMax && !utf8.RuneStart(near[i]) {
		i++
	}
	return r.start + int64(i)
}

// completePrefix returns the length of p without an incomplete character at its end.
func completePrefix(p []byte) int {
	for i := 1; i <= min(len(p), utf8.UTFMax); i++ {
		if b := p[len(p)-i]; utf8.RuneStart(b) {
			if !utf8.FullRune(p[len(p)-i:]) {
				return len(p) - i
			}
			break
		}
	}
	return len(p)
}
