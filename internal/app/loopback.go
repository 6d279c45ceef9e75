package app

import (
	"net"
	"net/http"
	"net/netip"
	"strings"

	"github.com/cove-sandbox/cove/internal/auth"
	"github.com/cove-sandbox/cove/internal/config"
)

// guardLoopback protects the handler for programs inside if it is served over TCP. The browser
// also runs inside, so pages must not be able to use the API from their origin or through DNS
// rebinding. Requests through the hub do not have a loopback address either.
func (a *Aio) guardLoopback(next http.Handler) http.Handler {
	if a.cfg.Loopback == "" {
		return next
	}
	own, c := a.newSites(), auth.Config{Open: true, Users: a.users, Log: a.log}
	own.signIn(&c)
	own.guard = auth.New(c)
	guarded := own.guard.Wrap(own.apply(next))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch local, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr); {
		case local == nil || local.Network() == "unix":
			next.ServeHTTP(w, r)
		case !isLoopbackName(r.Host) && !own.hasName(r):
			http.Error(w, "this address is only for programs in the sandbox; use the URL http://"+a.cfg.Loopback, http.StatusForbidden)
		default:
			guarded.ServeHTTP(w, r)
		}
	})
}

// localUsers returns the users that may connect to the loopback addresses without credentials. all
// means every user: a sandbox of a hub has a separate loopback.
func localUsers(cfg config.Aio) (ids []int, all bool, err error) {
	if cfg.Contained {
		return nil, true, nil
	}
	ids, err = auth.LocalUsers(cfg.LocalUsers, config.Sudoer())
	return ids, err == nil && ids == nil, err
}

// isLoopbackName reports whether a Host header names the loopback interface.
func isLoopbackName(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	addr, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return strings.EqualFold(host, "localhost") || err == nil && addr.Unmap().IsLoopback()
}
