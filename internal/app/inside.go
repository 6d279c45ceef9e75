package app

import (
	"context"
	"net/netip"
	"slices"

	"github.com/cove-sandbox/cove/internal/config"
	"github.com/cove-sandbox/cove/internal/guest/activity"
	"github.com/cove-sandbox/cove/internal/guest/bash"
	"github.com/cove-sandbox/cove/internal/guest/jupyter"
	"github.com/cove-sandbox/cove/internal/guest/node"
	"github.com/cove-sandbox/cove/internal/guest/shell"
)

// ownPorts tells the ports on loopback that the sandbox keeps to itself.
func ownPorts(c config.Aio, more ...func() []int) func(port int) bool {
	server := ownAddress(c)
	outlet := func(netip.AddrPort) bool { return false }
	if c.Egress != "" {
		outlet = ownAddress(config.Aio{Listen: c.Outlet})
	}
	return func(port int) bool {
		at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(port))
		return server(at) || outlet(at) || slices.ContainsFunc(more, func(ports func() []int) bool { return slices.Contains(ports(), port) })
	}
}

// busy counts what runs although nobody may wait for it.
func busy(sh *shell.Service, ba *bash.Service, py *jupyter.Service, js *node.Service) []activity.Source {
	ctx := context.Background()
	return []activity.Source{
		{Name: "shell", Running: func() (n int) {
			list, _ := sh.List(ctx, shell.None{})
			for _, s := range list.Sessions {
				n += count(s.CurrentCommand != nil || s.Status == "active")
			}
			return n
		}},
		{Name: "bash", Running: func() (n int) {
			list, _ := ba.Sessions(ctx, bash.None{})
			for _, s := range list {
				n += count(s.CurrentCommand != nil)
			}
			return n
		}},
		{Name: "jupyter", Running: func() (n int) {
			list, _ := py.ListSessions(ctx, jupyter.None{})
			for _, s := range list.Sessions {
				n += count(s.State == "busy")
			}
			return n
		}},
		{Name: "nodejs", Running: func() (n int) {
			list, _ := js.ListSessions(ctx, node.ListSessionsIn{})
			for _, s := range list.Sessions {
				n += count(s.State == "busy")
			}
			return n
		}},
	}
}

func count(yes bool) int {
	if yes {
		return 1
	}
	return 0
}
