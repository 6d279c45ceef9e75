package tunnel

import (
	"net"
	"slices"
	"sync"
)

// Lobby holds the connections that have not proved yet who they are. When it is full, the one that has been there
// longest is closed: strangers who connect and wait keep nobody out, since those with a key prove it at once.
type Lobby struct {
	Max int

	mu      sync.Mutex
	waiting []net.Conn // oldest first
}

// Enter adds a connection.
func (l *Lobby) Enter(c net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting = append(l.waiting, c)
	if len(l.waiting) > l.Max {
		l.waiting[0].Close() // who handles it notices
		l.waiting = slices.Delete(l.waiting, 0, 1)
	}
}

// Leave removes a connection, which may have been closed by then.
func (l *Lobby) Leave(c net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := slices.Index(l.waiting, c); i >= 0 {
		l.waiting = slices.Delete(l.waiting, i, i+1)
	}
}
