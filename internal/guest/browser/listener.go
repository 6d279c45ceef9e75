package browser

import (
	"bytes"
	"strings"
	"sync"

	"github.com/cove-sandbox/cove/internal/proc"
)

// announcement is what Chromium says when its DevTools listen.
var announcement = []byte("DevTools listening on ")

// listener reads what Chromium says until it tells where its DevTools are, and keeps the end of it to explain a failure.
type listener struct {
	address chan string
	said    *proc.Capture

	mu   sync.Mutex
	line []byte // the line that is being written; nil when the address is known
	told bool
}

// maxLine bounds one line; the announcement is shorter.
const maxLine = 4 << 10

func newListener() *listener {
	return &listener{address: make(chan string, 1), said: proc.NewCapture(4<<10, 4<<10)}
}

func (l *listener) Write(b []byte) (int, error) {
	l.said.Write(b)
	l.mu.Lock()
	defer l.mu.Unlock()
	for rest := b; len(rest) > 0 && !l.told; {
		line, after, ended := bytes.Cut(rest, []byte("\n"))
		if room := maxLine - len(l.line); room > 0 {
			l.line = append(l.line, line[:min(room, len(line))]...)
		}
		if rest = after; !ended {
			break
		}
		if address, ok := bytes.CutPrefix(bytes.TrimSpace(l.line), announcement); ok {
			l.told = true
			l.address <- string(address)
		}
		l.line = l.line[:0]
	}
	return len(b), nil
}

// lines are what was said, without the noise about missing message buses that tells nothing.
func (l *listener) lines() []string {
	var out []string
	for line := range strings.SplitSeq(string(l.said.Bytes()), "\n") {
		if line = strings.TrimSpace(strings.ToValidUTF8(line, "?")); line != "" && !strings.Contains(line, "dbus/") {
			out = append(out, line)
		}
	}
	return out
}
