package browser

import (
	"bytes"
	"strings"
	"sync"

	"github.com/cove-sandbox/cove/internal/proc"
)

// announcement precedes the address of DevTools in Chromium's output.
var announcement = []byte("DevTools listening on ")

// outputScanner finds the address of DevTools in Chromium's output, and keeps the end of the output to explain a failure.
type outputScanner struct {
	address chan string
	output  *proc.Capture

	mu    sync.Mutex
	line  []byte // the current line; nil once the address is known
	found bool
}

// maxLine bounds a line; the announcement is shorter.
const maxLine = 4 << 10

func newOutputScanner() *outputScanner {
	return &outputScanner{address: make(chan string, 1), output: proc.NewCapture(4<<10, 4<<10)}
}

func (l *outputScanner) Write(b []byte) (int, error) {
	l.output.Write(b)
	l.mu.Lock()
	defer l.mu.Unlock()
	for rest := b; len(rest) > 0 && !l.found; {
		line, after, ended := bytes.Cut(rest, []byte("\n"))
		if room := maxLine - len(l.line); room > 0 {
			l.line = append(l.line, line[:min(room, len(line))]...)
		}
		if rest = after; !ended {
			break
		}
		if address, ok := bytes.CutPrefix(bytes.TrimSpace(l.line), announcement); ok {
			l.found = true
			l.address <- string(address)
		}
		l.line = l.line[:0]
	}
	return len(b), nil
}

// lines returns the output without the irrelevant complaints about D-Bus.
func (l *outputScanner) lines() []string {
	var out []string
	for line := range strings.SplitSeq(string(l.output.Bytes()), "\n") {
		if line = strings.TrimSpace(strings.ToValidUTF8(line, "?")); line != "" && !strings.Contains(line, "dbus/") {
			out = append(out, line)
		}
	}
	return out
}
