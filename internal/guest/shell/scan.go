package shell

import "bytes"

// Limits of a sequence that is held back until it is complete. Longer ones are passed
// through.
const (
	maxControl = 64
	maxString  = 8 << 10
)

// hookPrefix starts the sequences of our hooks.
const hookPrefix = "\x1b]5379;"

// sink receives what a scanner finds, in stream order. The slices are only valid
// during the call.
type sink interface {
	// text is what programs print.
	text(b []byte)
	// query is a sequence that asks the terminal for a reply.
	query(b []byte)
	// handleHook takes the body of a hook's sequence; false means that it is forged.
	handleHook(body []byte) bool
}

// scanner splits a stream of terminal output. Where the stream is cut between two
// calls makes no difference. The zero value is ready.
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

// feed takes the next piece of the stream.
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

// flush emits what is held back, at the end of the stream.
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
	case s.mode == inStringEnd: // the escape began another sequence
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

// endControl emits a complete control sequence. Queries must not reach viewers, each of
// which is a terminal and would reply.
func (s *scanner) endControl(to sink) {
	body := s.held[2:]
	final, args := body[len(body)-1], body[:len(body)-1]
	asks := false
	switch final {
	case 'c':
		asks = true
	case 'n':
		asks = bytes.HasSuffix(args, []byte("5")) || bytes.HasSuffix(args, []byte("6"))
	case 'p':
		asks = bytes.HasSuffix(args, []byte("$"))
	case 'q':
		asks = bytes.HasPrefix(args, []byte(">"))
	case 't':
		asks = len(args) == 2 && (args[0] == '1' || args[0] == '2' && args[1] < '2')
	case 'u':
		asks = bytes.HasPrefix(args, []byte("?"))
	}
	s.emitSequence(asks, to)
}

// endString emits a complete string: a hook, a query, or any other.
func (s *scanner) endString(to sink) {
	if bytes.HasPrefix(s.held, []byte(hookPrefix)) && s.held[len(s.held)-1] == 7 {
		if to.handleHook(s.held[len(hookPrefix) : len(s.held)-1]) {
			s.held, s.mode = s.held[:0], inText
			return
		}
	}
	body := bytes.TrimRight(s.held[2:], "\x07\x1b\\")
	asks := s.held[1] == ']' && bytes.HasSuffix(body, []byte(";?")) ||
		s.held[1] == 'P' && (bytes.HasPrefix(body, []byte("$q")) || bytes.HasPrefix(body, []byte("+q")))
	s.emitSequence(asks, to)
}

func (s *scanner) emitSequence(asks bool, to sink) {
	if asks {
		to.query(s.held)
	} else {
		to.text(s.held)
	}
	s.held, s.mode = s.held[:0], inText
}
