package fleet

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/network/egress"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// Box is the state that a hub keeps for one sandbox. RoundTrip sends requests to ServerHost, the
// sandbox's server, or to PortHost(n), a port inside.
type Box struct {
	id        string
	transport *http.Transport

	mu        sync.Mutex // lock it before the mutex of the fleet or the directory, never after
	closed    bool
	sb        sandbox.Sandbox // as last observed; can be stale
	announced sandbox.Sandbox // as in the provider's latest event
	open      int             // in-flight requests and streams
	last      time.Time       // time of last use
	kept      time.Time       // the value of last that the provider stores
	hold      chan struct{}   // not nil while it is being suspended; closed afterwards
	acting    bool            // the clock is processing it
	retry     time.Time       // the clock ignores it until then
	waking    *waking         // the latest attempt to wake it

	opening chan struct{} // not nil while its egress proxy is being opened; closed afterwards
	proxy   *egress.Proxy
	rules   sandbox.Network // of proxy
	served  chan struct{}   // closed when proxy is no longer served

	notices notices
}

// ID of the sandbox.
func (b *Box) ID() string { return b.id }

// RoundTrip sends a request into the sandbox.
func (b *Box) RoundTrip(r *http.Request) (*http.Response, error) { return b.transport.RoundTrip(r) }

// close releases the resources of the box.
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

// seen returns the last observed state of the sandbox.
func (b *Box) seen() sandbox.Sandbox {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.sb
}

// use counts an in-flight request, which prevents the sandbox from being suspended. If the sandbox is
// being suspended, use waits.
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

// Leave ends a request that Enter has counted.
func (b *Box) Leave() {
	b.mu.Lock()
	b.open--
	b.last = time.Now()
	b.mu.Unlock()
}

// OpenRequests is the number of in-flight requests and streams into a sandbox.
func (f *Fleet) OpenRequests(sb sandbox.Sandbox) int {
	b := f.box(sb)
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.open
}

// CloseIdleConnections closes unused connections.
func (b *Box) CloseIdleConnections() { b.transport.CloseIdleConnections() }
