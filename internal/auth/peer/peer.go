// Package peer finds out which local user is at the other end of a loopback connection, and
// keeps other users away from a listener.
//
// It asks the kernel (sock_diag) and, where netlink is not available, reads the kernel's
// table of connections. It owns nothing. It reports a user only while that user's socket is
// open: the kernel attributes what remains of a closed socket to root.
package peer

import (
	"errors"
	"log/slog"
	"net"
	"os"
	"slices"
)

// ErrUnknown means that the kernel knows no open socket of this network namespace at the
// other end.
var ErrUnknown = errors.New("the other end is no open socket on this machine, or belongs to another network namespace")

// Guard returns a listener that closes the connections of all local users but root, the one that
// runs this program, and the given ones. If the user cannot be determined, it closes
// the connection, too, except on systems that cannot determine users at all.
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
		g.log.Info("connection of another local user refused", "address", g.Addr().String(), "user", uid, "error", err)
		c.Close()
	}
}
