package vt

import "unicode/utf8"

// maxBody limits an operating system command; longer ones are ignored.
const maxBody = 8 << 10

// maxParam limits a number in a control sequence.
const maxParam = 9999

type state uint8

const (
	ground       state = iota
	escape             // after ESC
	designate          // after ESC and a byte of 0x20 to 0x2f
	control            // in a control sequence: after ESC [
	ignore             // in an invalid control sequence
	str                // in a string: OSC, DCS, APC, PM, SOS
	stringEscape       // after ESC in a string: its end, if a backslash follows
)

// parser is the state between two calls of Write, so that the result does not depend on how
// the stream is divided.
type parser struct {
	state   state
	partial [utf8.UTFMax]byte // the start of a character
	pending int               // bytes in partial

	prefix, inter byte // of the sequence: one of <=>? after ESC [, and a byte of 0x20 to 0x2f
	params        [16]int
	nparams       int
	osc           bool   // the string is an operating system command
	body          []byte // of the operating system command
	overlong      bool
	last          rune // the last printed character, for repetition
}

// Write interprets p. It never fails.
func (t *Terminal) Write(p []byte) (int, error) {
	n := len(p)
	for len(p) > 0 {
		switch t.state {
		case ground:
			p = t.groundState(p)
		case str:
			p = t.stringState(p)
		default:
			p = t.sequenceState(p)
		}
	}
	return n, nil
}

// groundState processes text and control characters up to the start of a sequence, and
// returns the rest.
func (t *Terminal) groundState(p []byte) []byte {
	for len(p) > 0 {
		if t.pending > 0 {
			p = t.complete(p)
			continue
		}
		b := p[0]
		switch {
		case b-' ' < 0x7f-' ':
			p = p[t.printASCII(p):]
		case b < ' ':
			p = p[1:]
			if t.controlCharacter(b); t.state != ground {
				return p
			}
		case b == 0x7f:
			p = p[1:]
		default:
			p = t.decode(p)
		}
	}
	return p
}

// decode prints the non-ASCII character at the start of p, or keeps the available part of it.
func (t *Terminal) decode(p []byte) []byte {
	r, size := utf8.DecodeRune(p)
	if r == utf8.RuneError && size == 1 {
		if !utf8.FullRune(p) {
			t.pending = copy(t.partial[:], p)
			return nil
		}
		// All bytes of an incomplete character are replaced by one U+FFFD.
		for size < len(p) && !utf8.FullRune(p[:size+1]) {
			size++
		}
	}
	t.printRune(r)
	return p[size:]
}

// complete appends the next byte to a character that started in an earlier Write.
func (t *Terminal) complete(p []byte) []byte {
	t.partial[t.pending] = p[0]
	b := t.partial[:t.pending+1]
	if !utf8.FullRune(b) {
		t.pending++
		return p[1:]
	}
	t.pending = 0
	r, size := utf8.DecodeRune(b)
	t.printRune(r)
	if r == utf8.RuneError && size == 1 {
		return p
	}
	return p[1:]
}

// printRune prints a non-ASCII character. It ignores U+0080 to U+009F, the eight-bit form of
// control characters, which programs do not use in UTF-8.
func (t *Terminal) printRune(r rune) {
	t.single = -1
	if r > 0x9f {
		t.print(r)
	}
}

// controlCharacter handles a character below space, in the ground state or inside a sequence.
func (t *Terminal) controlCharacter(b byte) {
	switch b {
	case '\b':
		t.x = max(0, t.x-1)
		t.wrap = false
	case '\t':
		t.tab()
	case '\n', '\v', '\f':
		if t.modes.newline {
			t.x = 0
		}
		t.wrap = false
		t.index()
	case '\r':
		t.x, t.wrap = 0, false
	case 0x0e:
		t.set = 1
	case 0x0f:
		t.set = 0
	case 0x18, 0x1a: // CAN and SUB end a sequence without effect
		t.state = ground
	case 0x1b:
		t.state = escape
		t.prefix, t.inter, t.nparams, t.params[0] = 0, 0, 0, 0
	}
}

// sequenceState processes one byte of a sequence and returns the rest of p.
func (t *Terminal) sequenceState(p []byte) []byte {
	b := p[0]
	switch {
	case t.state == stringEscape:
		if b == '\\' {
			t.state = ground
			t.endString()
			return p[1:]
		}
		// The escape starts another sequence and cancels the string.
		t.state = escape
		t.prefix, t.inter, t.nparams, t.params[0] = 0, 0, 0, 0
		return p
	case b < ' ':
		t.controlCharacter(b)
	case b == 0x7f:
	case b > 0x7f: // not part of any sequence: it is text
		t.state = ground
		return p
	case t.state == escape || t.state == designate:
		t.escapeByte(b)
	default:
		t.controlByte(b)
	}
	return p[1:]
}

func (t *Terminal) escapeByte(b byte) {
	if b < '0' {
		t.state, t.inter = designate, b
		return
	}
	if t.state == designate {
		t.state = ground
		t.dispatchDesignate(b)
		return
	}
	t.state = ground
	switch b {
	case '[':
		t.state = control
	case ']':
		t.state, t.osc, t.overlong, t.body = str, true, false, t.body[:0]
	case 'P', 'X', '^', '_':
		t.state, t.osc = str, false
	default:
		t.dispatchEscape(b)
	}
}

// controlByte processes a byte of a control sequence: a prefix, numbers, an intermediate, or
// the final byte.
func (t *Terminal) controlByte(b byte) {
	switch {
	case b >= '@':
		if t.state == control {
			t.state = ground
			t.dispatchControl(b)
		}
		t.state = ground
	case t.state == ignore:
	case b < '0':
		if t.inter != 0 {
			t.state = ignore
		}
		t.inter = b
	case t.inter != 0:
		t.state = ignore
	case b <= '9':
		if t.nparams == 0 {
			t.nparams = 1
		}
		if t.nparams <= len(t.params) {
			v := &t.params[t.nparams-1]
			*v = min(*v*10+int(b-'0'), maxParam)
		}
	case b == ';' || b == ':':
		t.nparams = max(t.nparams, 1) + 1
		if t.nparams <= len(t.params) {
			t.params[t.nparams-1] = 0
		} else {
			t.nparams = len(t.params) + 1
		}
	case t.nparams == 0 && t.prefix == 0:
		t.prefix = b
	default:
		t.state = ignore
	}
}

// stringState processes bytes of a string up to its end, and returns the rest.
func (t *Terminal) stringState(p []byte) []byte {
	n := 0
	for n < len(p) && p[n] != 0x1b && p[n] != 0x18 && p[n] != 0x1a && (p[n] != 7 || !t.osc) {
		n++
	}
	if t.osc && !t.overlong {
		if len(t.body)+n > maxBody {
			t.overlong = true
		} else {
			t.body = append(t.body, p[:n]...)
		}
	}
	if n == len(p) {
		return nil
	}
	switch p[n] {
	case 0x1b:
		t.state = stringEscape
	case 7:
		t.state = ground
		t.endString()
	default:
		t.state = ground
	}
	return p[n+1:]
}

// endString handles a complete string.
func (t *Terminal) endString() {
	if !t.osc || t.overlong {
		return
	}
	if len(t.body) >= 2 && t.body[1] == ';' && (t.body[0] == '0' || t.body[0] == '2') {
		t.title = cleanTitle(t.body[2:])
	}
	if t.opts.OSC != nil {
		t.opts.OSC(t.body)
	}
}

// cleanTitle removes control characters from a title and limits its length.
func cleanTitle(b []byte) string {
	const maxTitle = 256
	var title []rune
	for _, r := range string(b) {
		if r >= ' ' && (r < 0x7f || r > 0x9f) && len(title) < maxTitle {
			title = append(title, r)
		}
	}
	return string(title)
}
