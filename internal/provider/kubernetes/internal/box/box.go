// Package box holds the state of one sandbox: its record in a Secret, its current Pod, its tunnel, and the
// source of its next disk.
package box

import (
	"context"
	"fmt"
	"net"
	"sync"

	"github.com/cove-sandbox/cove/internal/network/tunnel"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/api"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/catalog"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/cluster"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// Box is a sandbox. Only the caller that has acquired its row may use it, except Pod.
type Box struct {
	*cluster.Session
	Record Record
	API    *api.Client     // for its namespace
	Pod    Pod             // connections go there
	Source *catalog.Source // initial content of the next Pod's disk; nil: empty
	Tunnel *tunnel.Client

	egress  net.Listener
	uid     string // of the Secret
	version string // of the Secret
	saved   []byte // the record in the Secret
}

// New returns a sandbox that has no objects in the cluster.
func New(s *cluster.Session, r Record) *Box {
	return &Box{Session: s, Record: r, API: s.ForOwner(r.Sandbox.Spec.Owner)}
}

// FillsDisk reports whether the next Pod waits for the content of its disk.
func (b *Box) FillsDisk() bool { return b.Source != nil && b.Source.Archive != "" }

// ReplacesHome reports whether the next Pod gets a new home, created from a snapshot, instead of the existing one.
func (b *Box) ReplacesHome() bool { return b.Record.Restore != nil && b.Record.Restore.Volume != "" }

// HomeClaim returns the name of the claim of the next Pod's home.
func (b *Box) HomeClaim() string {
	if b.ReplacesHome() {
		return b.Record.PodName() // a different name for each attempt
	}
	return b.Record.HomeName()
}

// OwnerReferences makes the cluster remove an object with the Secret of the sandbox.
func (b *Box) OwnerReferences() []api.OwnerReference {
	return []api.OwnerReference{{APIVersion: "v1", Kind: "Secret", Name: b.Record.Sandbox.ID, UID: b.uid}}
}

// Endpoint returns the address of a port; 0 is the port of the server.
func (b *Box) Endpoint(port int) sandbox.Endpoint {
	if port == 0 {
		port = b.Record.Sandbox.Spec.Server.Port
	}
	return sandbox.Endpoint{Address: fmt.Sprintf("port %d of Pod %s", port, b.Record.PodName()),
		Dial: func(ctx context.Context) (net.Conn, error) {
			return b.Tunnel.Dial(ctx, port)
		}}
}

// SetEgress replaces the listener for outgoing connections; nil closes it.
func (b *Box) SetEgress(l net.Listener) {
	if b.egress != nil {
		b.egress.Close()
	}
	b.egress = l
}

// Close closes all connections.
func (b *Box) Close() {
	b.Detach()
	b.SetEgress(nil)
}

// Detach removes the reference to the Pod, which is ending.
func (b *Box) Detach() {
	b.Pod.Set("")
	if b.Tunnel != nil {
		b.Tunnel.DropSpares()
	}
}

// Pod is the name of the current Pod; empty if there is none. It is safe for concurrent use.
type Pod struct {
	mu      sync.Mutex
	name    string
	changed chan struct{}
}

// Set sets the current Pod.
func (p *Pod) Set(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.name == name {
		return
	}
	p.name = name
	if p.changed != nil {
		close(p.changed)
		p.changed = nil
	}
}

// Get returns the current Pod and a channel that is closed when it changes.
func (p *Pod) Get() (name string, changed <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.changed == nil {
		p.changed = make(chan struct{})
	}
	return p.name, p.changed
}
