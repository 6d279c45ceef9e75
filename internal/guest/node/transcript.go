package node

import (
	"fmt"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/cove-sandbox/cove/internal/guest/internal/kernel"
)

// overhead is charged for each output in addition to its content, so that short outputs are
// limited, too. A reply has as many bytes for the fields of an output.
const overhead = 128

// output is one output of a cell.
type output = kernel.Output

// size is the number of bytes of an output in a reply, which has text and stack traces twice: in
// outputs, and in stdout or stderr.
func size(o output) int64 {
	n := content(o) + int64(len(o.Text)) + overhead
	for _, line := range o.Traceback {
		n += int64(len(line))
	}
	return n
}

func content(o output) int64 {
	n := int64(len(o.Text) + len(o.EName) + len(o.EValue))
	for _, line := range o.Traceback {
		n += int64(len(line))
	}
	if text, ok := o.Data["text/plain"].(string); ok {
		n += int64(len(text))
	}
	return n
}

// transcript buffers the outputs of one cell between the readers of the process, which must
// not block, and the caller, which may. It keeps a limited part: the first half of the limit
// is delivered immediately, and of the rest the last half at the end of the cell.
type transcript struct {
	ready chan struct{} // has an element when take would return something

	mu      sync.Mutex
	first   []output // not yet taken
	room    int64    // left for first
	full    bool     // room was exhausted: all outputs go to last
	last    []output
	held    int64 // size of last
	limit   int64 // of held
	dropped int64
}

func newTranscript(limit int64) *transcript {
	return &transcript{ready: make(chan struct{}, 1), room: limit / 2, limit: limit / 2}
}

func (t *transcript) add(o output) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := size(o)
	if !t.full && n <= t.room {
		t.room -= n
		t.first = append(t.first, o)
		select {
		case t.ready <- struct{}{}:
		default:
		}
		return
	}
	t.full = true
	t.last = append(t.last, o)
	t.held += n
	drop := 0
	for t.held > t.limit && drop < len(t.last)-1 {
		t.held -= size(t.last[drop])
		t.dropped += content(t.last[drop])
		drop++
	}
	clear(t.last[:drop])
	t.last = t.last[drop:]
}

// take returns the outputs that can be delivered immediately.
func (t *transcript) take() []output {
	t.mu.Lock()
	defer t.mu.Unlock()
	first := t.first
	t.first = nil
	return first
}

// finish returns the rest, with a note in place of dropped outputs.
func (t *transcript) finish() []output {
	t.mu.Lock()
	defer t.mu.Unlock()
	rest := t.first
	if t.dropped > 0 {
		rest = append(rest, stream("stdout", fmt.Sprintf("\n[... %d bytes of output omitted ...]\n", t.dropped)))
	}
	rest = append(rest, t.last...)
	t.first, t.last, t.held = nil, nil, 0
	return rest
}

func stream(name, text string) output {
	return output{Type: kernel.Stream, Name: name, Text: text}
}

func result(text string) output {
	return output{Type: kernel.ExecuteResult, Data: map[string]any{"text/plain": text}, Metadata: map[string]any{}}
}

func failure(name, value string) output {
	return output{Type: kernel.Error, EName: name, EValue: value, Traceback: []string{name + ": " + value}}
}

// fold joins adjacent text of one stream.
func fold(outputs []output) []output {
	var all []output
	var text strings.Builder
	for i, o := range outputs {
		if o.Type != kernel.Stream {
			all = append(all, o)
			continue
		}
		text.WriteString(o.Text)
		if i+1 < len(outputs) && outputs[i+1].Type == kernel.Stream && outputs[i+1].Name == o.Name {
			continue
		}
		all = append(all, stream(o.Name, text.String()))
		text.Reset()
	}
	return all
}

// firstBytes returns at most n bytes of s without splitting a character.
func firstBytes(s []byte, n int) []byte {
	if n >= len(s) {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}
