package sandbox

import (
	"context"
	"net"
	"time"
)

// Provider runs sandboxes and is the only source of truth about them: there is no other
// record of a sandbox. These promises hold for every provider; package providertest
// tests them:
//
//   - All methods may be called concurrently. Calls on one sandbox take effect one
//     after the other.
//   - A context limits the caller's wait. Canceling it never leaves a sandbox between
//     two states: the call is either undone or completed.
//   - The provider returns copies, and copies what it is given.
//   - An unknown ID is ErrNotFound; a call that the current state forbids is ErrState;
//     an ability that Abilities denies is ErrUnsupported. A call that asks for the
//     current state succeeds and does nothing.
//   - Sandboxes outlive the provider. Whether it is closed or killed, the next one
//     opened on the same state finds every completely created sandbox, usable, with its
//     Spec and in its actual state; and removes every partly created or partly deleted
//     one. A second provider on a state in use is refused with ErrInUse.
type Provider interface {
	// Abilities returns what this provider can do here. It does not change while the
	// provider is open.
	Abilities() Abilities

	// Create creates a sandbox and returns when it is Running: its server has answered
	// ReadyPath with 200. After any error, including the end of ctx and a server that is
	// not ready in time (ErrNotReady, with the reason and the last output of the
	// program), nothing is left behind and the name is free again. ErrConflict: the
	// owner has a sandbox of that name. ErrInvalid: see Spec.Validate.
	Create(ctx context.Context, spec Spec) (Sandbox, error)

	Get(ctx context.Context, id string) (Sandbox, error)

	// List returns the sandboxes that f selects, oldest first.
	List(ctx context.Context, f Filter) ([]Sandbox, error)

	// Update changes the Spec atomically: change edits a copy, which is then validated
	// and stored, unless change returns an error, which Update returns as it is. Name,
	// Owner, Labels, Annotations, Lifetime, Network, Resources, Env and Workdir may
	// change; any other change is ErrInvalid. Resources that can change live do so at
	// once; the others, Env and Workdir take effect with the next Start.
	Update(ctx context.Context, id string, change func(*Spec) error) (Sandbox, error)

	// Delete removes the sandbox, whatever its state, with everything that belongs to
	// it: processes, mounts, limits, files, sockets; but not volumes and snapshots. When
	// it returns nil, all of that is gone. Once begun it is completed, even if ctx ends.
	// Of several concurrent deletes each returns nil or ErrNotFound.
	Delete(ctx context.Context, id string) error

	// Pause suspends everything inside and keeps it in memory; Resume continues it.
	// Connections stay open meanwhile.
	Pause(ctx context.Context, id string) error
	Resume(ctx context.Context, id string) error

	// Stop ends everything inside, gracefully first, and keeps the disk. Start runs the
	// server again on that disk and returns when it is ready, like Create; if it fails,
	// the sandbox is Stopped as before.
	Stop(ctx context.Context, id string) error
	Start(ctx context.Context, id string) error

	// Endpoint returns how to connect to a port inside; port 0 is the server of
	// Spec.Server. It is valid until the sandbox is stopped or deleted. Nothing that the
	// sandbox does can make it lead anywhere but into the sandbox.
	Endpoint(ctx context.Context, id string, port int) (Endpoint, error)

	// Watch first sends one Event for each existing sandbox, then one for each change;
	// those of one sandbox are in order. The channel is closed when ctx ends, when the
	// provider is closed, or when the reader is so far behind that events were lost: it
	// must then call Watch again.
	Watch(ctx context.Context) (<-chan Event, error)

	// Close leaves the sandboxes running and ends everything else of the provider.
	// Calls in progress return ErrClosed or their result. It is idempotent.
	Close() error
}

// Endpoint is a way to connect to a port inside a sandbox.
type Endpoint struct {
	// Address describes it for people; it is not for dialing.
	Address string
	// Dial opens a connection. It may be called any number of times, concurrently.
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

// Event is one thing that happened to a sandbox.
type Event struct {
	Kind EventKind
	Time time.Time
	// Sandbox is the sandbox right after the event.
	Sandbox Sandbox
	// Message has details, if any.
	Message string
}

// EventKind is what happened.
type EventKind string

// The kinds of event. Existing is for sandboxes that exist when a Watch begins; Changed
// is any change of state or spec; Exceeded reports a limit that was enforced without a
// change of state.
const (
	Existing EventKind = "existing"
	Created  EventKind = "created"
	Changed  EventKind = "changed"
	Deleted  EventKind = "deleted"
	Exceeded EventKind = "exceeded"
)
