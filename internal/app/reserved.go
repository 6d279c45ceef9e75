package app

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/cove-sandbox/cove/internal/config"
)

// isOwnAddress returns a function that recognizes the addresses of the sandbox's server, which
// pages that are fetched for a caller must not reach.
func isOwnAddress(listen ...string) func(netip.AddrPort) bool {
	var own []netip.AddrPort
	for _, l := range listen {
		l = strings.Replace(l, "localhost", "127.0.0.1", 1)
		if strings.HasPrefix(l, ":") {
			l = "0.0.0.0" + l // all addresses
		}
		if at, err := netip.ParseAddrPort(l); err == nil && at.Port() != 0 {
			own = append(own, at)
		}
	}
	return func(to netip.AddrPort) bool {
		return slices.ContainsFunc(own, func(at netip.AddrPort) bool {
			return to.Port() == at.Port() && (to.Addr().IsLoopback() || to.Addr().IsUnspecified() || to.Addr() == at.Addr())
		})
	}
}

// isReservedPort returns a function that recognizes the loopback ports that belong to the
// sandbox itself and cannot be previewed: its server at all its addresses, the relay, and the given ones.
func isReservedPort(c config.Aio, more ...func() []int) func(port int) bool {
	door, _, _ := strings.Cut(c.Door, "/")
	own := isOwnAddress(c.Listen, c.Loopback, c.Outlet, door)
	return func(port int) bool {
		at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(port))
		return own(at) || slices.ContainsFunc(more, func(ports func() []int) bool { return slices.Contains(ports(), port) })
	}
}
