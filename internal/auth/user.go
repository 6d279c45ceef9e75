package auth

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/user"
	"slices"
	"strconv"
	"sync"

	"github.com/cove-sandbox/cove/internal/auth/peer"
)

type peerKey struct{}

// ConnContext announces a connection to the Guard, which determines its user when necessary.
// It is for http.Server.ConnContext.
func ConnContext(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, peerKey{}, sync.OnceValues(func() (int, error) { return peer.User(c) }))
}

// LocalUsers returns the IDs of the users that a server without credentials admits: root, the
// user that runs it, the user that started it with sudo (an ID, or empty), and the named
// users. A * admits all users; then the result is nil.
func LocalUsers(names []string, sudoer string) ([]int, error) {
	ids := []int{0, os.Geteuid()}
	if id, err := strconv.Atoi(sudoer); err == nil && os.Geteuid() == 0 {
		ids = append(ids, id)
	}
	for _, name := range names {
		if name == "*" {
			return nil, nil
		}
		id, err := strconv.Atoi(name)
		if err != nil {
			u, err := user.Lookup(name)
			if err != nil {
				return nil, fmt.Errorf("local user %q: %w", name, err)
			}
			if id, err = strconv.Atoi(u.Uid); err != nil {
				return nil, fmt.Errorf("local user %q has the ID %q, which is not a number", name, u.Uid)
			}
		}
		ids = append(ids, id)
	}
	return ids, nil
}

// rejectOtherUser rejects connections of other users of this machine, unless credentials
// identify callers. File permissions control access to a Unix socket.
func (g *Guard) rejectOtherUser(r *http.Request) *refusal {
	if !g.open || g.c.Users == nil || overUnix(r) {
		return nil
	}
	find, ok := r.Context().Value(peerKey{}).(func() (int, error))
	if !ok {
		return &refusal{status: http.StatusForbidden, reason: "unknown local user",
			detail: "the user of this connection cannot be determined. Configure credentials"}
	}
	uid, err := find()
	if err != nil {
		return &refusal{status: http.StatusForbidden, reason: "unknown local user",
			detail: "without authentication only root and the user that runs this server are admitted, " +
				"and the user of this connection cannot be determined: " + err.Error() +
				". Connect from the same machine and container, use the server's Unix socket, or configure credentials"}
	}
	if slices.Contains(g.c.Users, uid) {
		return nil
	}
	return &refusal{status: http.StatusForbidden, reason: "other local user",
		detail: fmt.Sprintf("without authentication only root and the user that runs this server are admitted, "+
			"and this connection belongs to user %d. Configure credentials, or add the user to local_users", uid)}
}
