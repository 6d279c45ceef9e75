//go:build linux

package replica

import (
	"net"
	"sync"
)

// crowd limits the connections that are forwarded or wait, so that one client cannot exhaust the limit.
type crowd struct {
	limit int

	mu    sync.Mutex
	total int
	peers map[string]int // by address
}

// enter counts a connection until leave is called; false if a limit is reached.
func (c *crowd) enter(from net.Addr) (leave func(), ok bool) {
	peer, _, err := net.SplitHostPort(from.String())
	if err != nil {
		peer = "" // of a Unix socket
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.total >= c.limit || c.peers[peer] >= c.limit/2 {
		return nil, false
	}
	if c.peers == nil {
		c.peers = map[string]int{}
	}
	c.total++
	c.peers[peer]++
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.total--
		if c.peers[peer]--; c.peers[peer] == 0 {
			delete(c.peers, peer)
		}
	}, true
}
