package connect

import (
	"sync"
	"time"
)

// connectInterval is the time between the first connections to two sandboxes.
const connectInterval = 2 * time.Millisecond

// pace limits the rate of first connections. Without it, a hub that starts would begin thousands of
// handshakes at once; all would time out and be repeated.
type pace struct {
	mu   sync.Mutex
	next time.Time
}

// reserve returns when the caller may connect.
func (p *pace) reserve() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	at := time.Now()
	if p.next.After(at) {
		at = p.next
	}
	p.next = at.Add(connectInterval)
	return at
}
