package node

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
)

const (
	markerSize = 16
	headSize   = markerSize + 4
	maxFrame   = 4096
)

// newMarker returns a random frame prefix. Its first byte occurs in no UTF-8 text, and only
// once in the prefix.
func newMarker() []byte {
	marker := make([]byte, markerSize)
	rand.Read(marker)
	for i, b := range marker {
		marker[i] = b &^ 0x80
	}
	marker[0] = 0xff
	return marker
}

// parser extracts frames from a stream of other bytes.
type parser struct {
	marker []byte
	raw    func([]byte)
	frame  func(kind byte, begins, ends bool, data []byte)

	rest []byte // the start of a frame
}

func (p *parser) feed(b []byte) {
	if len(p.rest) > 0 {
		b = append(p.rest, b...)
	}
	for len(b) > 0 {
		at := bytes.Index(b, p.marker)
		if at < 0 {
			at = len(b) - p.partialMarker(b)
		}
		if at > 0 {
			p.raw(b[:at])
		}
		b = b[at:]
		n, ok := p.next(b)
		if !ok {
			break
		}
		b = b[n:]
	}
	p.rest = append([]byte(nil), b...)
}

// next processes the frame at the start of b and returns its size, if it is complete.
func (p *parser) next(b []byte) (int, bool) {
	if len(b) < headSize {
		return 0, false
	}
	end := headSize + int(binary.BigEndian.Uint16(b[markerSize+2:]))
	if end > maxFrame { // not a frame
		p.raw(b[:markerSize])
		return markerSize, true
	}
	if len(b) < end {
		return 0, false
	}
	p.frame(b[markerSize], b[markerSize+1]&1 != 0, b[markerSize+1]&2 != 0, b[headSize:end])
	return end, true
}

// partialMarker returns how many bytes at the end of b may be the start of a marker.
func (p *parser) partialMarker(b []byte) int {
	if i := bytes.LastIndexByte(b, p.marker[0]); i >= 0 && bytes.HasPrefix(p.marker, b[i:]) {
		return len(b) - i
	}
	return 0
}

// flush emits the start of an incomplete frame.
func (p *parser) flush() {
	if len(p.rest) > 0 {
		p.raw(p.rest)
	}
	p.rest = nil
}
