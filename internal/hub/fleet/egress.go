package fleet

import (
	"context"
	"errors"
	"net"
	"reflect"
	"sync"
	"syscall"
	"time"

	"github.com/cove-sandbox/cove/internal/hub/internal/naming"
	"github.com/cove-sandbox/cove/internal/network/egress"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// openEgress serves a sandbox's egress proxy, or updates its rules. It is called after each observed
// change, so failures are retried.
func (f *Fleet) openEgress(b *Box, sb sandbox.Sandbox) {
	e, ok := f.Provider.(sandbox.Egresser)
	if !ok || sb.State == sandbox.Deleting || !f.Provider.Abilities().Egress {
		return
	}
	if !b.beginEgress() {
		f.applyRules(b, sb.Spec.Network)
		return
	}
	// Call the provider without a lock, because it can be slow.
	p, l, err := f.listenEgress(e, sb)
	if err != nil {
		// The folder of a sandbox may not exist before its creation ends.
		if sb.State != sandbox.Creating && !errors.Is(err, sandbox.ErrNotFound) {
			f.Log.Error("cannot open egress proxy of sandbox", "sandbox", b.id, "error", err)
		}
		b.endEgress(nil, nil, sandbox.Network{})
		return
	}
	served := make(chan struct{})
	if !b.endEgress(p, served, sb.Spec.Network) || !f.Tasks.Go(func(ctx context.Context) {
		defer close(served)
		defer context.AfterFunc(ctx, func() { p.Close() })()
		f.serveEgress(ctx, e, b, p, l)
	}) {
		l.Close()
		p.Close()
		b.dropEgress(served)
		return
	}
	f.applyRules(b, b.seen().Spec.Network)
}

// beginEgress reports whether the caller must open the egress proxy. If another goroutine is opening it,
// it waits for that.
func (b *Box) beginEgress() bool {
	for {
		b.mu.Lock()
		opening := b.opening
		if opening == nil {
			begins := !b.closed && b.proxy == nil
			if begins {
				b.opening = make(chan struct{})
			}
			b.mu.Unlock()
			return begins
		}
		b.mu.Unlock()
		<-opening
	}
}

// endEgress ends the opening, with or without a proxy. It returns false if the box was closed
// meanwhile; then the proxy is not used.
func (b *Box) endEgress(p *egress.Proxy, served chan struct{}, rules sandbox.Network) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	close(b.opening)
	b.opening = nil
	if b.closed {
		return false
	}
	b.proxy, b.served, b.rules = p, served, rules
	return true
}

// dropEgress removes a proxy that will not be served.
func (b *Box) dropEgress(served chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.served == served {
		b.proxy, b.served = nil, nil
		close(served)
	}
}

// egress returns the sandbox's egress proxy, and waits if it is being opened; nil if there is none.
func (b *Box) egress() *egress.Proxy {
	for {
		b.mu.Lock()
		out, opening := b.proxy, b.opening
		b.mu.Unlock()
		if opening == nil {
			return out
		}
		<-opening
	}
}

// listenEgress returns a proxy and a listener of the provider for it.
func (f *Fleet) listenEgress(e sandbox.Egresser, sb sandbox.Sandbox) (*egress.Proxy, net.Listener, error) {
	cfg := egress.Config{Network: sb.Spec.Network, Bandwidth: sb.Spec.Resources.Bandwidth, Private: f.Private, MaxConns: egressConns(),
		Credentials: f.Secrets.Credentials(sb.Spec), Authority: f.Authority, Log: f.Log,
		Observe: reporter{f, sb.ID}.connected, Asked: reporter{f, sb.ID}.asked}
	if f.Peer != nil {
		cfg.Peer = func(ctx context.Context, name string) (egress.Peer, bool) { return f.Peer(ctx, sb.ID, name) }
	}
	if f.ChangeEgress != nil {
		f.ChangeEgress(&cfg)
	}
	p, err := egress.New(cfg)
	if err != nil {
		return nil, nil, err
	}
	l, err := e.Egress(f.Tasks.Context(), sb.ID)
	if err != nil {
		p.Close()
		return nil, nil, err
	}
	return p, l, nil
}

// maxEgressConns is the maximum number of connections of a sandbox, and filesPerConn the number of files of this process for
// each of them. A connection has six, two sockets and two pipes with which the kernel copies, and one sandbox may have a
// quarter of all files.
const maxEgressConns, filesPerConn = 16 << 10, 24

// egressConns returns the maximum number of connections of a sandbox.
func egressConns() int {
	var files syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files) != nil {
		return maxEgressConns
	}
	return int(min(maxEgressConns, max(files.Cur/filesPerConn, 1)))
}

// applyRules changes the rules of an open egress proxy.
func (f *Fleet) applyRules(b *Box, rules sandbox.Network) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed || b.proxy == nil || reflect.DeepEqual(b.rules, rules) {
		return
	}
	if err := b.proxy.Set(rules); err != nil {
		f.Log.Error("cannot apply network rules", "sandbox", b.id, "error", err)
		return
	}
	b.rules = rules
}

// serveEgress serves until the proxy is closed. A listener that fails is replaced.
func (f *Fleet) serveEgress(ctx context.Context, e sandbox.Egresser, b *Box, p *egress.Proxy, l net.Listener) {
	for {
		err := p.Serve(l)
		select {
		case <-p.Done():
			return
		default:
		}
		f.Log.Warn("egress proxy of sandbox failed; reopening it", "sandbox", b.id, "error", err)
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

// Egress returns the egress proxy of a sandbox; nil if there is none.
func (f *Fleet) Egress(sb sandbox.Sandbox) *egress.Proxy { return f.box(sb).egress() }

// RefreshCredentials updates the egress proxies of an owner's sandboxes after its
// secrets have changed.
func (f *Fleet) RefreshCredentials(owner string) {
	for _, b := range f.all() {
		sb := b.seen()
		if sb.Spec.Owner != owner || sb.Spec.Annotations[naming.AnnotationSecrets] == "" {
			continue
		}
		if p := b.egress(); p != nil {
			if err := p.SetCredentials(f.Secrets.Credentials(sb.Spec)); err != nil {
				f.Log.Error("cannot broker secrets", "sandbox", sb.ID, "error", err)
			}
		}
	}
}

// maxTraffic is the maximum number of owners whose traffic of deleted sandboxes is kept.
const maxTraffic = 10000

// traffic is the traffic of deleted sandboxes.
type traffic struct {
	mu   sync.Mutex
	gone map[string]egress.Stats // by owner
}

func (t *traffic) keep(b *Box) {
	p := b.egress()
	if p == nil {
		return
	}
	s, owner := p.Stats(), b.seen().Spec.Owner
	t.mu.Lock()
	defer t.mu.Unlock()
	sum, known := t.gone[owner]
	if !known && len(t.gone) >= maxTraffic {
		return
	}
	sum.Sent, sum.Received = sum.Sent+s.Sent, sum.Received+s.Received
	t.gone[owner] = sum
}

// TrafficOf returns the bytes that a sandbox has sent and received since the start of the hub.
func TrafficOf(f *Fleet, id string) (sent, received int64) {
	if b := f.known(id); b != nil {
		if p := b.egress(); p != nil {
			s := p.Stats()
			return s.Sent, s.Received
		}
	}
	return 0, 0
}

// Traffic is the traffic of an owner's sandboxes since the start of the hub.
func (f *Fleet) Traffic(owner string) egress.Stats {
	f.traffic.mu.Lock()
	sum := f.traffic.gone[owner]
	f.traffic.mu.Unlock()
	for _, b := range f.all() {
		if p := b.egress(); p != nil && b.seen().Spec.Owner == owner {
			s := p.Stats()
			sum.Sent, sum.Received = sum.Sent+s.Sent, sum.Received+s.Received
		}
	}
	return sum
}
