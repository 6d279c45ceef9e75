package sandbox

import (
	"context"
	"net"
	"time"
)

// Provider runs sandboxes and is the only authoritative source of their state. It gives these guarantees,
// which package providertest tests:
//
//   - All methods are safe for concurrent use. Calls on one sandbox are serialized.
//   - A context limits the caller's wait. After a cancellation the call is either undone or completed.
//   - The provider returns copies, and copies its arguments.
//   - An unknown ID is ErrNotFound; a call that the current state forbids is ErrState;
//     an ability that Abilities denies is ErrUnsupported. A call that requests the current state is a
//     no-op.
//   - Sandboxes outlive the provider. After it is closed or killed, the next provider with the same state
//     finds every completely created sandbox, usable, with its Spec and in its actual state, and removes
//     partly created or deleted ones. A second provider with a state in use fails with ErrInUse.
type Provider interface {
	// Abilities returns what this provider supports here. It does not change while the provider is
	// open.
	Abilities() Abilities

	// Create creates a sandbox and returns when it is Running: its server has replied 200 to ReadyPath.
	// After an error nothing is left and the name is free. That includes the end of ctx and a server that
	// is not ready in time (ErrNotReady, with the reason and the last output of the program). ErrConflict:
	// the owner has a sandbox with that name. ErrInvalid: see Spec.Validate.
	Create(ctx context.Context, spec Spec) (Sandbox, error)

	Get(ctx context.Context, id string) (Sandbox, error)

	// List returns the sandboxes that f selects, oldest first.
	List(ctx context.Context, f Filter) ([]Sandbox, error)

	// Update changes the Spec atomically: change edits a copy, which is then validated and stored. If
	// change returns an error, Update returns it unchanged. Name, Owner, Labels, Annotations, Lifetime,
	// Network, Resources, Env and Workdir can change; other changes are ErrInvalid. Resources that can
	// change live take effect immediately; the others, Env and Workdir at the next Start.
	Update(ctx context.Context, id string, change func(*Spec) error) (Sandbox, error)

	// Delete removes the sandbox in any state, with its processes, mounts, limits, files and sockets, but
	// not volumes and snapshots. When it returns nil, they are removed. It completes even if ctx ends.
	// Concurrent deletes return nil or ErrNotFound.
	Delete(ctx context.Context, id string) error

	// Pause suspends all processes and keeps them in memory; Resume continues them. Connections stay
	// open.
	Pause(ctx context.Context, id string) error
	Resume(ctx context.Context, id string) error

	// Stop ends all processes, gracefully first, and keeps the disk. Start runs the server on that disk
	// and returns when it is ready, like Create; if it fails, the sandbox stays Stopped.
	Stop(ctx context.Context, id string) error
	Start(ctx context.Context, id string) error

	// Endpoint returns how to connect to a port inside; port 0 is the server of Spec.Server. It is valid
	// until the sandbox is stopped or deleted. The sandbox cannot redirect it to another destination.
	Endpoint(ctx context.Context, id string, port int) (Endpoint, error)

	// Watch first sends one Event for each existing sandbox, then one for each change. Events of one
	// sandbox are in order. The channel is closed when ctx ends, when the provider is closed, or when the
	// reader is too far behind and events were lost; the reader must then call Watch again.
	Watch(ctx context.Context) (<-chan Event, error)

	// Close releases the resources of the provider; sandboxes keep running. Calls in progress return
	// ErrClosed or their result. It is idempotent.
	Close() error
}

// Endpoint connects to a port inside a sandbox.
type Endpoint struct {
	// Address describes it for people; it is not for dialing.
	Address string
	// Dial opens a connection. It is safe for concurrent use.
	Dial func(ctx context.Context) (net.Conn, error)
}

// Filter selects sandboxes; zero fields select all.
type Filter struct {
	Owner       string
	Name        string
	Environment string
	States      []State
	Labels      map[string]string // all must match
}

// Match reports whether f selects s.
func (f Filter) Match(s Sandbox) bool {
	if f.Owner != "" && f.Owner != s.Spec.Owner ||
		f.Name != "" && f.Name != s.Spec.Name ||
		f.Environment != "" && f.Environment != s.Spec.Environment {
		return false
	}
	for k, v := range f.Labels {
		if got, ok := s.Spec.Labels[k]; !ok || got != v {
			return false
		}
	}
	for _, st := range f.States {
		if st == s.State {
			return true
		}
	}
	return len(f.States) == 0
}

// Event is one event of a sandbox.
type Event struct {
	Kind EventKind
	Time time.Time
	// Sandbox is the sandbox after the event.
	Sandbox Sandbox
	// Message has details, if any.
	Message string
}

// EventKind is the kind of an event.
type EventKind string

// The kinds of event. Existing is for sandboxes that exist when a Watch begins. Changed is any change of
// state or spec. Exceeded reports an enforced limit without a change of state.
const (
	Existing EventKind = "existing"
	Created  EventKind = "created"
	Changed  EventKind = "changed"
	Deleted  EventKind = "deleted"
	Exceeded EventKind = "exceeded"
)
