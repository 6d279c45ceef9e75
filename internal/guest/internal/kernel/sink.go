package kernel

import (
	"sync"
	"unicode/utf8"
)

// overhead is charged for each output in addition to its content, so that empty outputs are
// limited, too.
const overhead = 64

// sink buffers the outputs of one cell between their reader, which must never block (a
// kernel drops messages, even the end of a cell, if they are not read), and the caller,
// which may. It keeps a limited part: the first half of the limit is delivered immediately,
// and of the rest the last half at the end of the cell.
type sink struct {
	ready chan struct{} // has an element when take would return outputs

	mu      sync.Mutex
	first   []Output // not yet taken
	room    int64    // left for first
	full    bool     // room was exhausted: all outputs go to last
	last    []sized
	held    int64 // bytes in last
	limit   int64 // of held
	dropped int64
	lost    int64 // missing from outputs before they were added
	cleared bool  // a clear_output was dropped
}

type sized struct {
	Output
	size int64
}

func newSink(limit int64) *sink {
	return &sink{ready: make(chan struct{}, 1), room: limit / 2, limit: limit / 2}
}

// add adds an output whose content had n bytes.
func (s *sink) add(o Output, n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o.Type == Stream {
		if n > maxFrame {
			s.lost += n - int64(len(o.Text))
		}
		n = int64(len(o.Text))
	}
	n += overhead
	if !s.full && n <= s.room {
		s.room -= n
		s.deliver(o)
		return
	}
	if !s.full && o.Type == Stream {
		head := o
		head.Text = firstBytes(o.Text, s.room)
		if head.Text != "" {
			s.deliver(head)
			o.Text = o.Text[len(head.Text):]
			n = int64(len(o.Text)) + overhead
		}
	}
	s.full = true
	s.keep(sized{o, n})
}

func (s *sink) deliver(o Output) {
	s.first = append(s.first, o)
	select {
	case s.ready <- struct{}{}:
	default:
	}
}

// keep appends to last and drops the oldest outputs above the limit.
func (s *sink) keep(o sized) {
	if o.size > s.limit && o.Type != Stream {
		s.dropped += o.size
		o = sized{omittedOutput(o.Type, o.size), 2 * overhead}
	}
	s.last = append(s.last, o)
	s.held += o.size
	drop := 0
	for s.held > s.limit && drop < len(s.last) {
		front := &s.last[drop]
		over := s.held - s.limit
		if front.Type == Stream && front.size-overhead > over {
			tail := lastBytes(front.Text, int64(len(front.Text))-over)
			cut := int64(len(front.Text) - len(tail))
			front.Text = tail
			front.size -= cut
			s.held -= cut
			s.dropped += cut
			break
		}
		s.cleared = s.cleared || front.Type == ClearOutput
		s.held -= front.size
		s.dropped += front.size - overhead
		drop++
	}
	if drop > 0 {
		clear(s.last[:drop])
		s.last = s.last[drop:]
	}
}

// take returns the outputs that can be delivered immediately.
func (s *sink) take() []Output {
	s.mu.Lock()
	defer s.mu.Unlock()
	first := s.first
	s.first = nil
	return first
}

// finish returns the rest, and how many bytes are missing from the output.
func (s *sink) finish() ([]Output, int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	rest := s.first
	if s.cleared {
		rest = append(rest, Output{Type: ClearOutput, Wait: true})
	}
	if s.dropped > 0 {
		rest = append(rest, Output{Type: Dropped, Bytes: s.dropped})
	}
	for _, o := range s.last {
		rest = append(rest, o.Output)
	}
	s.first, s.last, s.held = nil, nil, 0
	return rest, s.dropped + s.lost
}

// firstBytes returns at most the first n bytes of s without splitting a character.
func firstBytes(s string, n int64) string {
	if n >= int64(len(s)) {
		return s
	}
	n = max(0, n)
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// lastBytes returns at most the last n bytes of s without splitting a character.
func lastBytes(s string, n int64) string {
	if n >= int64(len(s)) {
		return s
	}
	i := int64(len(s)) - max(0, n)
	for i < int64(len(s)) && !utf8.RuneStart(s[i]) {
		i++
	}
	return s[i:]
}
