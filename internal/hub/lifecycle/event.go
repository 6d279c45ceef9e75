package lifecycle

import (
	"cmp"
	"context"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/hub/internal/caller"
	"github.com/cove-sandbox/cove/internal/hub/internal/history"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// Event is one event of a sandbox.
type Event struct {
	Type    string    `json:"type" doc:"existing, created, changed, deleted, exceeded, idle, expired, denied, pending, learning, missed"`
	Time    time.Time `json:"time" doc:"When it happened; for existing: when the sandbox changed last"`
	Sandbox *Object   `json:"sandbox,omitempty" doc:"The sandbox after the event, without its environment and arguments"`
	Message string    `json:"message,omitempty"`
}

// EventsIn selects the events of a sandbox.
type EventsIn struct {
	Name  string `path:"name" doc:"Name of the sandbox"`
	After string `query:"after" default:"" doc:"ID of the last event received; same as Last-Event-ID"`
}

// AllEventsIn selects the events of all sandboxes of a tenant.
type AllEventsIn struct {
	User  string `query:"user" default:"" doc:"Tenant whose sandboxes to follow, or * for all; admins only"`
	After string `query:"after" default:"" doc:"ID of the last event received; same as Last-Event-ID"`
}

// Events follows a sandbox until it is deleted.
func (s *Service) Events(ctx context.Context, in EventsIn, send func(op.Event) error) error {
	f := follower{service: s, send: send, after: resumeID(ctx, in.After), untilDeleted: true}
	sb, err := s.Fleet.Find(ctx, in.Name)
	f.match = func(e history.Event) bool { return e.Sandbox.ID == sb.ID }
	if err != nil {
		// It may have been deleted while the reader was disconnected.
		who, admin := caller.Owner(ctx), caller.IsAdmin(op.CallOf(ctx))
		f.match = func(e history.Event) bool {
			owned := e.Sandbox.Spec.Owner == who
			return owned && e.Sandbox.Spec.Name == in.Name || e.Sandbox.ID == in.Name && (owned || admin)
		}
		if !f.hasMissed() {
			return err
		}
	}
	f.current = func() ([]sandbox.Sandbox, error) {
		sb, err := s.Fleet.Find(ctx, in.Name)
		if err != nil {
			return nil, err
		}
		return []sandbox.Sandbox{sb}, nil
	}
	return f.run(ctx)
}

// AllEvents follows all sandboxes of the caller.
func (s *Service) AllEvents(ctx context.Context, in AllEventsIn, send func(op.Event) error) error {
	who, err := caller.Select(ctx, in.User)
	f := follower{service: s, send: send, after: resumeID(ctx, in.After)}
	f.current = func() ([]sandbox.Sandbox, error) { return s.Select(ctx, ListIn{User: in.User}) }
	// A tenant that is not visible to the caller has no events.
	f.match = func(e history.Event) bool { return err == nil && who.Has(e.Sandbox.Spec.Owner) }
	return f.run(ctx)
}

// resumeID is the ID of the last event that a reader has received.
func resumeID(ctx context.Context, after string) string {
	return cmp.Or(op.CallOf(ctx).LastEventID, after)
}

// follower sends events to one reader.
type follower struct {
	service *Service
	send    func(op.Event) error
	after   string // ID of the last event that the reader has received
	current func() ([]sandbox.Sandbox, error)
	match   func(history.Event) bool

	untilDeleted bool
}

// hasMissed reports whether the reader missed a matching event while it was disconnected.
func (f *follower) hasMissed() bool {
	seq, ok := f.service.History.Find(f.after)
	if !ok {
		return false
	}
	for _, e := range f.service.History.After(seq).Events {
		if f.match(e) {
			return true
		}
	}
	return false
}

// run sends the current state, then events. A reader that reconnects in time gets only the events
// that it missed.
func (f *follower) run(ctx context.Context) error {
	log := f.service.History
	seq, known := log.Find(f.after)
	now := log.After(seq)
	if !known || now.Lost {
		if f.after != "" {
			if err := f.sendEvent(ctx, now.Last, Event{Type: "missed", Time: time.Now().UTC(),
				Message: "events were lost; the current state follows"}, nil); err != nil {
				return err
			}
		}
		var err error
		if seq, err = f.sendCurrent(ctx); err != nil {
			return err
		}
	}
	for {
		next := log.After(seq)
		if next.Lost {
			if err := f.sendEvent(ctx, next.Last, Event{Type: "missed", Time: time.Now().UTC(),
				Message: "events were lost because this reader is too slow; the current state follows"}, nil); err != nil {
				return err
			}
			var err error
			if seq, err = f.sendCurrent(ctx); err != nil {
				return err
			}
			continue
		}
		for _, e := range next.Events {
			seq = e.Seq
			if !f.match(e) {
				continue
			}
			if err := f.sendEvent(ctx, e.Seq, Event{Type: e.Kind, Time: e.Time.UTC(), Message: e.Message}, &e.Sandbox); err != nil {
				return err
			}
			if f.untilDeleted && e.Kind == string(sandbox.Deleted) {
				return nil
			}
		}
		if next.Closed {
			return nil
		}
		select {
		case <-next.Changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// sendCurrent sends the current state and returns the position at which to continue. Events that
// occur meanwhile are sent twice rather than lost.
func (f *follower) sendCurrent(ctx context.Context) (int64, error) {
	seq := f.service.History.Last()
	list, err := f.current()
	if err != nil {
		return 0, err
	}
	for _, sb := range list {
		if err := f.sendEvent(ctx, seq, Event{Type: string(sandbox.Existing), Time: changed(sb)}, &sb); err != nil {
			return 0, err
		}
	}
	return seq, nil
}

// changed is the time of the last change of a sandbox.
func changed(sb sandbox.Sandbox) time.Time {
	if sb.Changed.IsZero() {
		return sb.Created.UTC()
	}
	return sb.Changed.UTC()
}

func (f *follower) sendEvent(ctx context.Context, seq int64, e Event, sb *sandbox.Sandbox) error {
	if sb != nil {
		o := f.service.Show(ctx, *sb)
		e.Sandbox = &o
	}
	return f.send(op.Event{ID: f.service.History.ID(seq), Name: e.Type, Data: e})
}
