// Package peer determines the local user at the other end of a loopback connection, and
// closes connections of other users.
//
// It queries the kernel (sock_diag) or, if netlink is not available, reads the kernel's table
// of connections. It reports a user only while that user's socket is open, because the kernel
// attributes closed sockets to root.
package peer

import (
	"errors"
	"log/slog"
	"net"
	"os"
	"slices"
)

// ErrUnknown means that the other end is not an open socket of this network namespace.
var ErrUnknown = errors.New("the other end is not an open socket on this machine, or belongs to another network namespace")

// Guard returns a listener that accepts only connections of root, of the user that runs this
// program, and of the given users. It also closes connections whose user cannot be determined,
// except on systems without support for that.
func Guard(l net.Listener, users []int, log *slog.Logger) net.Listener {
	return &guarded{l, append([]int{0, os.Geteuid()}, users...), log}
}

type guarded struct {
	net.Listener
	users []int
	log   *slog.Logger
}

// Accept implements net.Listener.
func (g *guarded) Accept() (net.Conn, error) {
	for {
		c, err := g.Listener.Accept()
		if err != nil {
			return nil, err
		}
		uid, err := User(c)
		if errors.Is(err, errors.ErrUnsupported) || err == nil && slices.Contains(g.users, uid) {
			return c, nil
		}
		g.log.Info("connection of another local user rejected", "address", g.Addr().String(), "user", uid, "error", err)
		c.Close()
	}
}
