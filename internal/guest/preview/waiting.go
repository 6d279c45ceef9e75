package preview

import (
	"sync"
	"time"
)

const (
	reloadSeconds = 3
	// patience is how long pages reload while a port is closed. Each request keeps the sandbox awake, so a
	// forgotten page must not do so forever.
	patience = 10 * time.Minute
	// pause is the time without a request after which a page waits again.
	pause = time.Minute
)

// waiting remembers since when pages wait for ports.
type waiting struct {
	mu    sync.Mutex
	since map[int]span // at most one for each port
}

type span struct{ first, last time.Time }

// waits reports whether a page of a closed port should reload.
func (c *waiting) waits(port int, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.since == nil {
		c.since = map[int]span{}
	}
	s := c.since[port]
	if now.Sub(s.last) > pause {
		s.first = now
	}
	s.last = now
	c.since[port] = s
	return now.Sub(s.first) < patience
}
