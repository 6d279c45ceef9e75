package fleet

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/network/egress"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// Box is what a hub runs for one sandbox. A RoundTrip goes to the host
// ServerHost, the sandbox's server, or PortHost(n), a port inside.
type Box struct {
	id        string
	transport *http.Transport

	mu        sync.Mutex // may be held when the fleet's or the directory's is taken, never the other way round
	closed    bool
	sb        sandbox.Sandbox // as last seen: good enough to set an alarm by
	announced sandbox.Sandbox // as in the provider's latest event
	open      int             // requests and streams under way
	last      time.Time       // when it was last used
	kept      time.Time       // the value of last that the provider has
	hold      chan struct{}   // not nil while it is put to sleep; closed when that is over
	acting    bool            // the clock is working on it
	retry     time.Time       // the clock leaves it alone until then
	waking    *waking         // its latest waking

	opening chan struct{} // not nil while its egress proxy is being opened; closed when that is over
	proxy   *egress.Proxy
	rules   sandbox.Network // of out
	served  chan struct{}   // closed when out is no longer served
}

// ID of the sandbox.
func (b *Box) ID() string { return b.id }

// RoundTrip sends a request into the sandbox.
func (b *Box) RoundTrip(r *http.Request) (*http.Response, error) { return b.transport.RoundTrip(r) }

// close ends what the hub runs for the sandbox.
func (b *Box) close() {
	b.mu.Lock()
	b.closed = true
	out, served := b.proxy, b.served
	b.mu.Unlock()
	if out != nil {
		out.Close()
		<-served
	}
	b.transport.CloseIdleConnections()
}

// seen is the sandbox as last seen.
func (b *Box) seen() sandbox.Sandbox {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.sb
}

// use counts a request in. While any is under way the sandbox is not put to
// sleep; if that is just happening, use waits until it is over.
func (b *Box) use(ctx context.Context) error {
	for {
		b.mu.Lock()
		hold := b.hold
		if hold == nil {
			b.open++
			b.last = time.Now()
			b.mu.Unlock()
			return nil
		}
		b.mu.Unlock()
		select {
		case <-hold:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Leave counts a request out that Enter has counted in.
func (b *Box) Leave() {
	b.mu.Lock()
	b.open--
	b.last = time.Now()
	b.mu.Unlock()
}

// OpenRequests is how many requests and streams into a sandbox are under way.
func (f *Fleet) OpenRequests(sb sandbox.Sandbox) int {
	b := f.box(sb)
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.open
}

// CloseIdleConnections closes connections that no request uses.
func (b *Box) CloseIdleConnections() { b.transport.CloseIdleConnections() }
