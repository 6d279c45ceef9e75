package node

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
)

const (
	signSize = 16
	headSize = signSize + 4
	maxFrame = 4096
)

// newSign returns a random frame prefix. Its first byte occurs in no UTF-8 text, and only
// once in the prefix.
func newSign() []byte {
	sign := make([]byte, signSize)
	rand.Read(sign)
	for i, b := range sign {
		sign[i] = b &^ 0x80
	}
	sign[0] = 0xff
	return sign
}

// parser extracts frames from a stream of other bytes.
type parser struct {
	sign  []byte
	raw   func([]byte)
	frame func(kind byte, begins, ends bool, data []byte)

	rest []byte // the start of a frame
}

func (p *parser) feed(b []byte) {
	if len(p.rest) > 0 {
		b = append(p.rest, b...)
	}
	for len(b) > 0 {
		at := bytes.Index(b, p.sign)
		if at < 0 {
			at = len(b) - p.partialSign(b)
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
	end := headSize + int(binary.BigEndian.Uint16(b[signSize+2:]))
	if end > maxFrame { // not one of ours
		p.raw(b[:signSize])
		return signSize, true
	}
	if len(b) < end {
		return 0, false
	}
	p.frame(b[signSize], b[signSize+1]&1 != 0, b[signSize+1]&2 != 0, b[headSize:end])
	return end, true
}

// partialSign is how many bytes at the end of b may be the start of a sign.
func (p *parser) partialSign(b []byte) int {
	if i := bytes.LastIndexByte(b, p.sign[0]); i >= 0 && bytes.HasPrefix(p.sign, b[i:]) {
		return len(b) - i
	}
	return 0
}

// flush emits the start of a frame that was never completed.
func (p *parser) flush() {
	if len(p.rest) > 0 {
		p.raw(p.rest)
	}
	p.rest = nil
}
