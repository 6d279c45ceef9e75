package shell

import "bytes"

// Maximum sizes of a sequence that is held until it is complete. Longer ones are passed
// through.
const (
	maxControl = 64
	maxString  = 8 << 10
)

// hookPrefix starts the sequences of the hooks.
const hookPrefix = "\x1b]5379;"

// sink receives the parts that a scanner finds, in stream order. The slices are only valid
// during the call.
type sink interface {
	// text receives output of programs.
	text(b []byte)
	// query receives a sequence that requests a reply of the terminal.
	query(b []byte)
	// handleHook receives the body of a hook's sequence. False means that it is forged.
	handleHook(body []byte) bool
}

// scanner splits a stream of terminal output. The result does not depend on how the stream is
// divided into calls. The zero value is ready.
type scanner struct {
	held []byte // the start of a sequence
	mode scanMode
}

type scanMode uint8

const (
	inText      scanMode = iota
	inEscape             // after ESC
	inControl            // after ESC [
	inString             // after ESC ] or ESC P
	inStringEnd          // after ESC in a string
)

// feed scans the next piece of the stream.
func (s *scanner) feed(p []byte, to sink) {
	for len(p) > 0 {
		if s.mode == inText {
			i := bytes.IndexByte(p, 0x1b)
			if i < 0 {
				to.text(p)
				return
			}
			if i > 0 {
				to.text(p[:i])
			}
			s.beginEscape()
			p = p[i+1:]
			continue
		}
		if s.scanByte(p[0], to) {
			p = p[1:]
		}
	}
}

// flush emits the held bytes at the end of the stream.
func (s *scanner) flush(to sink) {
	if len(s.held) > 0 {
		to.text(s.held)
	}
	s.held, s.mode = s.held[:0], inText
}

func (s *scanner) beginEscape() { s.held, s.mode = append(s.held[:0], 0x1b), inEscape }

// scanByte processes one byte of a sequence; false means: process it again.
func (s *scanner) scanByte(b byte, to sink) bool {
	switch {
	case s.mode == inStringEnd && b == '\\':
		s.held = append(s.held, b)
		s.endString(to)
		return true
	case s.mode == inStringEnd: // the escape starts another sequence
		s.held = s.held[:len(s.held)-1]
		s.flush(to)
		s.beginEscape()
		return false
	case b == 0x1b && s.mode == inString:
		s.held, s.mode = append(s.held, b), inStringEnd
		return true
	case b == 0x1b:
		s.flush(to)
		s.beginEscape()
		return true
	}
	s.held = append(s.held, b)
	switch s.mode {
	case inEscape:
		s.startSequence(b, to)
	case inControl:
		switch {
		case b >= 0x40 && b < 0x7f:
			s.endControl(to)
		case b < 0x20 || b >= 0x7f || len(s.held) > maxControl:
			s.flush(to)
		}
	case inString:
		switch {
		case b == 7 && s.held[1] == ']':
			s.endString(to)
		case b == 0x18 || b == 0x1a || len(s.held) > maxString:
			s.flush(to)
		}
	}
	return true
}

func (s *scanner) startSequence(b byte, to sink) {
	switch b {
	case '[':
		s.mode = inControl
	case ']', 'P':
		s.mode = inString
	default:
		s.flush(to)
	}
}

// endControl emits a complete control sequence. Queries must not reach viewers, because each
// viewer is a terminal and would reply.
func (s *scanner) endControl(to sink) {
	body := s.held[2:]
	final, args := body[len(body)-1], body[:len(body)-1]
	isQuery := false
	switch final {
	case 'c':
		isQuery = true
	case 'n':
		isQuery = bytes.HasSuffix(args, []byte("5")) || bytes.HasSuffix(args, []byte("6"))
	case 'p':
		isQuery = bytes.HasSuffix(args, []byte("$"))
	case 'q':
		isQuery = bytes.HasPrefix(args, []byte(">"))
	case 't':
		isQuery = len(args) == 2 && (args[0] == '1' || args[0] == '2' && args[1] < '2')
	case 'u':
		isQuery = bytes.HasPrefix(args, []byte("?"))
	}
	s.emitSequence(isQuery, to)
}

// endString emits a complete string: a hook, a query, or another one.
func (s *scanner) endString(to sink) {
	if bytes.HasPrefix(s.held, []byte(hookPrefix)) && s.held[len(s.held)-1] == 7 {
		if to.handleHook(s.held[len(hookPrefix) : len(s.held)-1]) {
			s.held, s.mode = s.held[:0], inText
			return
		}
	}
	body := bytes.TrimRight(s.held[2:], "\x07\x1b\\")
	isQuery := s.held[1] == ']' && bytes.HasSuffix(body, []byte(";?")) ||
		s.held[1] == 'P' && (bytes.HasPrefix(body, []byte("$q")) || bytes.HasPrefix(body, []byte("+q")))
	s.emitSequence(isQuery, to)
}

func (s *scanner) emitSequence(isQuery bool, to sink) {
	if isQuery {
		to.query(s.held)
	} else {
		to.text(s.held)
	}
	s.held, s.mode = s.held[:0], inText
}
