package hub

import (
	"context"
	"errors"
	"net"
	"reflect"
	"time"

	"github.com/cove-sandbox/cove/internal/egress"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// openEgress serves the sandbox's way out, or brings its rules up to date. It is
// called whenever a sandbox was seen, so what fails now is tried again.
func (h *Hub) openEgress(b *box, sb sandbox.Sandbox) {
	e, ok := h.cfg.Provider.(sandbox.Egresser)
	if !ok || sb.State == sandbox.Deleting || !h.cfg.Provider.Abilities().Egress {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return
	}
	if b.out != nil {
		if !reflect.DeepEqual(b.rules, sb.Spec.Network) {
			if err := b.out.Set(sb.Spec.Network); err != nil {
				h.cfg.Log.Error("cannot apply network rules", "sandbox", b.id, "error", err)
				return
			}
			b.rules = sb.Spec.Network
		}
		return
	}
	cfg := egress.Config{Network: sb.Spec.Network, Private: h.cfg.Private, Credentials: h.brokered(sb.Spec), Authority: h.cfg.Authority, Log: h.cfg.Log, Observe: func(r egress.Record) { h.connected(b, r) }}
	if h.cfg.outward != nil {
		h.cfg.outward(&cfg)
	}
	p, err := egress.New(cfg)
	if err != nil {
		h.cfg.Log.Error("cannot open a sandbox's way out", "sandbox", b.id, "error", err)
		return
	}
	l, err := e.Egress(h.life, b.id)
	if err != nil {
		// While it is being made its folder may not be there yet.
		if sb.State != sandbox.Creating && !errors.Is(err, sandbox.ErrNotFound) {
			h.cfg.Log.Error("cannot open a sandbox's way out", "sandbox", b.id, "error", err)
		}
		p.Close()
		return
	}
	served := make(chan struct{})
	if !h.background(func(ctx context.Context) {
		defer close(served)
		defer context.AfterFunc(ctx, func() { p.Close() })()
		h.serveEgress(ctx, e, b, p, l)
	}) {
		l.Close()
		p.Close()
		return
	}
	b.out, b.served, b.rules = p, served, sb.Spec.Network
}

// serveEgress serves until the proxy is closed. A listener that fails is replaced.
func (h *Hub) serveEgress(ctx context.Context, e sandbox.Egresser, b *box, p *egress.Proxy, l net.Listener) {
	for {
		err := p.Serve(l)
		select {
		case <-p.Done():
			return
		default:
		}
		h.cfg.Log.Warn("a sandbox's way out broke; opening it again", "sandbox", b.id, "error", err)
		for {
			select {
			case <-ctx.Done():
				return
			case <-p.Done():
				return
			case <-time.After(time.Second):
			}
			if l, err = e.Egress(ctx, b.id); err == nil {
				break
			}
			if errors.Is(err, sandbox.ErrNotFound) {
				return
			}
		}
	}
}

// connected notes a connection out of a sandbox.
func (h *Hub) connected(b *box, r egress.Record) {
	h.counts.egress(1, r.Verdict)
	h.cfg.Log.Info("egress", "sandbox", b.id, "protocol", r.Protocol, "host", r.Host, "port", r.Port, "address", r.Address, "verdict", r.Verdict, "reason", r.Reason)
}
