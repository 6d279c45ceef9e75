package tunnel

import (
	"net"
	"slices"
	"sync"
)

// Lobby contains the unauthenticated connections. When it is full, it closes the oldest one: unauthenticated
// clients cannot exclude others, because clients with a key authenticate at once.
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
		l.waiting[0].Close() // its handshake fails
		l.waiting = slices.Delete(l.waiting, 0, 1)
	}
}

// Leave removes a connection, which Enter may have closed.
func (l *Lobby) Leave(c net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := slices.Index(l.waiting, c); i >= 0 {
		l.waiting = slices.Delete(l.waiting, i, i+1)
	}
}
