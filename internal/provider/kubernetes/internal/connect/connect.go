// Package connect connects the hub to Pods: tunnels, output of programs, and the wait for a Pod and its server
// to be ready.
package connect

import (
	"context"
	"errors"
	"net"
	"net/url"
	"strconv"
	"time"

	"github.com/cove-sandbox/cove/internal/network/tunnel"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/api"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/box"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/cluster"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/create"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/watch"
)

// Connector connects to Pods.
type Connector struct {
	*cluster.Session
	Pods *watch.Cache
	// Provisioning reports whether the next Pod cannot be scheduled yet because its home is being created.
	Provisioning func(context.Context, *box.Box) bool

	pace pace
}

// OpenTunnel sets the tunnel of a sandbox, which always connects to its current Pod.
func (c *Connector) OpenTunnel(b *box.Box) (err error) {
	b.Tunnel, err = tunnel.NewClient(c.Hub.Cert, c.Hub.Key, b.Record.Pin, func(ctx context.Context) (net.Conn, error) {
		pod, _ := b.Pod.Get()
		return c.dial(ctx, b.API, pod)
	})
	return err
}

// dial connects to the tunnel port of a Pod.
func (c *Connector) dial(ctx context.Context, ns *api.Client, pod string) (net.Conn, error) {
	port := strconv.Itoa(create.Port)
	switch {
	case pod == "":
		return nil, errors.New("the sandbox has no running Pod")
	case c.Config.Reach == cluster.ReachAPI:
		return ns.Forward(ctx, ns.Address(cluster.Pods, []string{pod, "portforward"}, url.Values{"ports": {port}}))
	}
	p, _ := c.Pods.Get(pod)
	if p.Status.PodIP == "" {
		return nil, errors.New("the Pod of the sandbox has no address")
	}
	var d net.Dialer
	return d.DialContext(ctx, "tcp", net.JoinHostPort(p.Status.PodIP, port))
}

// Via returns a client for a Pod that is not the current Pod of the sandbox.
func (c *Connector) Via(b *box.Box, pod string) *tunnel.Client {
	return b.Tunnel.Via(func(ctx context.Context) (net.Conn, error) { return c.dial(ctx, b.API, pod) })
}

// Listen returns a listener for the outgoing connections of a sandbox. It reconnects when the sandbox gets
// another Pod, and replaces the previous listener.
func (c *Connector) Listen(b *box.Box) net.Listener {
	b.SetEgress(nil)
	begin := c.pace.reserve()
	l := b.Tunnel.Via(func(ctx context.Context) (net.Conn, error) {
		if err := waitUntil(ctx, begin); err != nil {
			return nil, err
		}
		for {
			pod, changed := b.Pod.Get()
			if pod != "" {
				return c.dial(ctx, b.API, pod)
			}
			select {
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			case <-changed:
			}
		}
	}).Listen(address(b.Record.Sandbox.ID))
	b.SetEgress(l)
	return l
}

// address is a sandbox as the address of a listener.
type address string

func (a address) Network() string { return "tunnel" }
func (a address) String() string  { return string(a) }

// waitUntil waits until a time.
func waitUntil(ctx context.Context, at time.Time) error {
	wait := time.Until(at)
	if wait <= 0 {
		return nil
	}
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(wait):
		return nil
	}
}
