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
	// maxConns is how many connections a server has at most. It never takes more than half of the
	// files that the process may open: the other half is for what it serves.
	maxConns = 65536
	// crowdLog is how often refused connections are logged at most.
	crowdLog = time.Minute
)

// crowd bounds the connections of a server: all of them, and those of one address, which may take half. Those that
// became WebSockets are not counted: their client has signed in.
type crowd struct {
	limit int
	log   *slog.Logger

	mu      sync.Mutex
	conns   map[net.Conn]netip.Prefix
	peers   map[netip.Prefix]int
	refused int // since it was logged last
	logged  time.Time
}

func newCrowd(log *slog.Logger) *crowd {
	limit := maxConns
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err == nil && files.Cur < 2*maxConns {
		limit = max(int(files.Cur/2), 2)
	}
	return &crowd{limit: limit, log: log, conns: map[net.Conn]netip.Prefix{}, peers: map[netip.Prefix]int{}}
}

// note learns what connections do, and closes a new one that is too many.
func (c *crowd) note(conn net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		if peer, ok := peerOf(conn); ok && !c.enter(conn, peer) {
			conn.Close()
		}
	case http.StateClosed, http.StateHijacked:
		c.leave(conn)
	}
}

// peerOf returns the network that a client is counted by; ok is false for a client of a Unix socket.
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

func (c *crowd) enter(conn net.Conn, peer netip.Prefix) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.conns) < c.limit && c.peers[peer] < c.limit/2 {
		c.conns[conn] = peer
		c.peers[peer]++
		return true
	}
	if c.refused++; time.Since(c.logged) > crowdLog {
		c.log.Warn("connections refused: too many are open", "peer", peer, "of_peer", c.peers[peer], "open",
			len(c.conns), "limit", c.limit, "refused", c.refused)
		c.logged, c.refused = time.Now(), 0
	}
	return false
}

func (c *crowd) leave(conn net.Conn) {
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
