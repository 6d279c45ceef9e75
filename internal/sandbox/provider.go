package sandbox

import (
	"context"
	"net"
	"time"
)

// Provider makes sandboxes and keeps the truth about them: no other record of a
// sandbox exists. Package providertest is the test of these promises, which
// hold for every provider:
//
//   - All methods may be called at once from many goroutines. Calls on one
//     sandbox take effect one after the other.
//   - A context bounds the caller's wait. Ending it early never leaves a
//     sandbox between two states: the call is either undone or carried through.
//   - What the provider returns is a copy, and what it is given is copied.
//   - An unknown ID is ErrNotFound; a call that the present state forbids is
//     ErrState; an ability that Abilities denies is ErrUnsupported. A call that
//     asks for the state the sandbox is already in succeeds and does nothing.
//   - Sandboxes outlive the provider. Whether it is closed or killed, the next
//     one opened on the same state finds every finished sandbox, with its Spec,
//     in the state it is really in, usable; and removes every half-made and
//     half-deleted one. A second provider on a state in use is refused with ErrInUse.
type Provider interface {
	// Abilities says what this provider can do here. It does not change while
	// the provider is open.
	Abilities() Abilities

	// Create makes a sandbox and returns when it is Running: its server has
	// answered ReadyPath with 200. On any error, also when ctx ends or the
	// server is not ready in time (ErrNotReady, with the reason and the last
	// words of the program), nothing is left behind and the name is free again.
	// ErrConflict: the owner has a sandbox of that name. ErrInvalid: see Spec.Validate.
	Create(ctx context.Context, spec Spec) (Sandbox, error)

	Get(ctx context.Context, id string) (Sandbox, error)

	// List returns what f selects, oldest first.
	List(ctx context.Context, f Filter) ([]Sandbox, error)

	// Update changes the Spec in one step: change gets a copy of it, and what it
	// leaves there is checked and kept unless it returns an error, which Update
	// then returns as it is. Name, Owner, Labels, Annotations, Lifetime, Network,
	// Resources, Env and Workdir may change; any other change is ErrInvalid.
	// Resources that can change live do so at once, the others, Env and Workdir
	// with the next Start.
	Update(ctx context.Context, id string, change func(*Spec) error) (Sandbox, error)

	// Delete removes the sandbox, whatever its state, with all that belongs to
	// it: processes, mounts, limits, files, sockets; not its volumes and snapshots. When it
	// returns nil all of that is gone. Once begun it is carried through, even if
	// ctx ends. Of several deletes at once each returns nil or ErrNotFound.
	Delete(ctx context.Context, id string) error

	// Pause takes the processor away from everything inside and keeps it in
	// memory; Resume gives it back. Connections stay open meanwhile.
	Pause(ctx context.Context, id string) error
	Resume(ctx context.Context, id string) error

	// Stop ends everything inside, politely first, and keeps the disk. Start
	// runs the server again on that disk and returns when it is ready, like
	// Create; if it fails the sandbox is Stopped as before.
	Stop(ctx context.Context, id string) error
	Start(ctx context.Context, id string) error

	// Endpoint tells how to connect to a port inside; port 0 is the server of
	// Spec.Server. It holds until the sandbox is stopped or deleted. Nothing
	// the sandbox does can make it lead anywhere but into the sandbox.
	Endpoint(ctx context.Context, id string, port int) (Endpoint, error)

	// Watch first sends one Event for each sandbox there is, then one for each
	// change, those of one sandbox in the order they happened. The channel is
	// closed when ctx ends, when the provider is closed, or when the reader has
	// fallen so far behind that events were lost: then watch anew.
	Watch(ctx context.Context) (<-chan Event, error)

	// Close lets go of the sandboxes, which live on, and ends what the provider
	// itself runs. Calls under way end with ErrClosed or their result. It is
	// idempotent.
	Close() error
}

// Endpoint is a way to connect to a port inside a sandbox.
type Endpoint struct {
	// Address describes it to people; it is not for dialing.
	Address string
	// Dial opens one connection. It may be called often and at once.
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

// Match says whether f selects s.
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
	// Sandbox is as it was right after the event.
	Sandbox Sandbox
	// Message tells more where there is more to tell.
	Message string
}

// EventKind is what happened.
type EventKind string

// The kinds of event. Existing opens a Watch; Changed is any change of state or
// spec; Exceeded tells of a limit that was hit and enforced without a change of state.
const (
	Existing EventKind = "existing"
	Created  EventKind = "created"
	Changed  EventKind = "changed"
	Deleted  EventKind = "deleted"
	Exceeded EventKind = "exceeded"
)
