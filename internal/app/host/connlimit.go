//go:build linux

package host

import (
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"syscall"
	"time"
)

const (
	// maxConns is the maximum number of connections of a server. They use at most half of the
	// files that the process may open, so that the other half is available to services.
	maxConns = 65536
	// limitLogInterval is the minimum interval between logs of rejected connections.
	limitLogInterval = time.Minute
)

// connLimit bounds the connections of a server. Connections from one address may use half of the
// limit. WebSockets are not counted, because their clients are authenticated.
type connLimit struct {
	limit int
	log   *slog.Logger

	mu      sync.Mutex
	conns   map[net.Conn]netip.Prefix
	peers   map[netip.Prefix]int
	refused int // since the last log
	logged  time.Time
}

func newConnLimit(log *slog.Logger) *connLimit {
	limit := maxConns
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err == nil && files.Cur < 2*maxConns {
		limit = max(int(files.Cur/2), 2)
	}
	return &connLimit{limit: limit, log: log, conns: map[net.Conn]netip.Prefix{}, peers: map[netip.Prefix]int{}}
}

// note tracks the states of connections, and closes new connections above the limit.
func (c *connLimit) note(conn net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		if peer, ok := peerOf(conn); ok && !c.enter(conn, peer) {
			conn.Close()
		}
	case http.StateClosed, http.StateHijacked:
		c.leave(conn)
	}
}

// peerOf returns the network by which a client is counted; ok is false for a Unix socket.
func peerOf(conn net.Conn) (peer netip.Prefix, ok bool) {
	from, err := netip.ParseAddrPort(conn.RemoteAddr().String())
	if err != nil {
		return peer, false
	}
	addr, bits := from.Addr().Unmap().WithZone(""), 32
	if addr.Is6() {
		bits = 64 // a client usually has all addresses of such a network
	}
	peer, err = addr.Prefix(bits)
	return peer, err == nil
}

func (c *connLimit) enter(conn net.Conn, peer netip.Prefix) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.conns) < c.limit && c.peers[peer] < c.limit/2 {
		c.conns[conn] = peer
		c.peers[peer]++
		return true
	}
	if c.refused++; time.Since(c.logged) > limitLogInterval {
		c.log.Warn("connections rejected: limit reached", "peer", peer, "of_peer", c.peers[peer], "open",
			len(c.conns), "limit", c.limit, "refused", c.refused)
		c.logged, c.refused = time.Now(), 0
	}
	return false
}

func (c *connLimit) leave(conn net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	peer, ok := c.conns[conn]
	if !ok {
		return
	}
	delete(c.conns, conn)
	if c.peers[peer]--; c.peers[peer] == 0 {
		delete(c.peers, peer)
	}
}
