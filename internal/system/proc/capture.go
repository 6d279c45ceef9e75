package proc

import (
	"bytes"
	"fmt"
	"strings"
	"sync"
)

// Capture keeps the first and the last bytes written to it and counts those in
// between. It never fails and never blocks its writer. Memory grows as needed, up
// to head+tail bytes.
type Capture struct {
	mu       sync.Mutex
	max      int // of tail
	headMax  int
	head     []byte
	tail     []byte // a ring once it has max bytes
	next     int    // where the ring's oldest byte is
	total    int64
	finished bool
}

// NewCapture keeps up to head bytes of the beginning and tail bytes of the end.
func NewCapture(head, tail int) *Capture {
	return &Capture{headMax: max(head, 0), max: max(tail, 0)}
}

// Write takes all of b.
func (c *Capture) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := len(b)
	if c.finished {
		return n, nil
	}
	c.total += int64(n)
	if room := min(c.headMax-len(c.head), len(b)); room > 0 {
		c.head = append(c.head, b[:room]...)
		b = b[room:]
	}
	if len(b) > c.max {
		b = b[len(b)-c.max:]
	}
	if room := min(c.max-len(c.tail), len(b)); room > 0 {
		c.tail = append(c.tail, b[:room]...)
		b = b[room:]
	}
	for len(b) > 0 {
		k := copy(c.tail[c.next:], b)
		c.next = (c.next + k) % c.max
		b = b[k:]
	}
	return n, nil
}

// Total returns the number of bytes written.
func (c *Capture) Total() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.total
}

// Dropped returns the number of bytes that were not kept.
func (c *Capture) Dropped() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.dropped()
}

func (c *Capture) dropped() int64 { return c.total - int64(len(c.head)+len(c.tail)) }

// Head returns a copy of the beginning. If nothing was dropped, Head followed
// by Tail is the whole output.
func (c *Capture) Head() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]byte(nil), c.head...)
}

// Tail returns a copy of the end, without the bytes of Head.
func (c *Capture) Tail() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append(append([]byte(nil), c.tail[c.next:]...), c.tail[:c.next]...)
}

// Bytes returns all kept bytes. A marker line replaces dropped bytes and contains
// their number.
func (c *Capture) Bytes() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.bytes()
}

func (c *Capture) bytes() []byte {
	marker := ""
	if n := c.dropped(); n > 0 {
		marker = Marker(n)
	}
	all := make([]byte, 0, len(c.head)+len(marker)+len(c.tail))
	all = append(all, c.head...)
	all = append(all, marker...)
	all = append(all, c.tail[c.next:]...)
	return append(all, c.tail[:c.next]...)
}

// String returns Bytes as a string.
func (c *Capture) String() string { return string(c.Bytes()) }

// Marker returns the text that replaces n dropped bytes.
func Marker(n int64) string { return fmt.Sprintf("\n[... %d bytes dropped ...]\n", n) }

// take returns the kept bytes and releases them: later writes are neither kept nor
// counted. A nil Capture is empty.
func (c *Capture) take() ([]byte, int64) {
	if c == nil {
		return nil, 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	all, dropped := c.head, c.dropped()
	if len(c.tail) > 0 || dropped > 0 {
		all = c.bytes()
	}
	c.head, c.tail, c.next, c.finished = nil, nil, 0, true
	return all, dropped
}

// LastLine returns the last line of a program's output, which usually explains a failure.
func LastLine(output []byte) string {
	output = bytes.TrimSpace(output)
	if len(output) == 0 {
		return "it printed nothing"
	}
	line := output[bytes.LastIndexByte(output, '\n')+1:]
	return strings.ToValidUTF8(string(bytes.TrimSpace(line)), "?")
}
