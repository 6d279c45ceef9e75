package inspect

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/hub/internal/caller"
	"github.com/cove-sandbox/cove/internal/hub/internal/history"
	"github.com/cove-sandbox/cove/internal/hub/lifecycle"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// pastOps lists the operations on what happened to sandboxes.
func pastOps(s *Service) []op.Op {
	return []op.Op{
		op.New(op.Spec{Name: "sandbox_history", Access: op.AccessRead, Route: "GET " + one + "/history", Tag: "sandbox",
			Verb: "history", ReadOnly: true, NoTool: true, Columns: []string{"time", "type", "message"},
			Doc: "Show what happened to a sandbox, newest first: changes of its state, exceeded limits, and denied connections. " +
				"The hub remembers the latest events of all sandboxes since its start."}, s.Past),
		op.New(op.Spec{Name: "sandbox_deleted", Access: op.AccessRead, Route: "GET /api/v1/deleted", Tag: "sandbox",
			Verb: "deletions", ReadOnly: true, NoTool: true, Columns: []string{"name", "deleted_at", "reason"}, Wide: []string{"id", "user"},
			Doc: "List the sandboxes that were deleted during the last day, newest first, with the reason."}, s.Deleted),
	}
}

// PastEvent is something that happened to a sandbox.
type PastEvent struct {
	Time    time.Time `json:"time"`
	Type    string    `json:"type" doc:"created, running, paused, stopped, failed, exceeded, idle, expired, changed or denied"`
	Message string    `json:"message"`
	Bad     bool      `json:"bad" doc:"Whether it is a problem"`
}

// maxPast limits the events in a reply.
const maxPast = 200

// Past returns what happened to a sandbox.
func (s *Service) Past(ctx context.Context, in lifecycle.NameIn) ([]PastEvent, error) {
	sb, err := s.Fleet.Find(ctx, in.Name)
	if err != nil {
		return nil, err
	}
	op.CallOf(ctx).Recorded = true
	out := []PastEvent{{Time: sb.Created.UTC(), Type: string(sandbox.Created), Message: "from environment " + sb.Spec.Environment}}
	var before history.Event
	for _, e := range s.History.Of(sb.ID) {
		if p, ok := pastEvent(before, e); ok {
			out = append(out, p)
		}
		before = e
	}
	if before.Seq == 0 && sb.Message != "" { // the event was before the start of this hub
		out = append(out, PastEvent{sb.Changed.UTC(), string(sb.State), sb.Message, sb.State == sandbox.Failed})
	}
	slices.Reverse(out) // keeps the order of events at the same time
	slices.SortStableFunc(out, func(a, b PastEvent) int { return b.Time.Compare(a.Time) })
	return out[:min(len(out), maxPast)], nil
}

// pastEvent describes an event; false if it shows nothing new.
func pastEvent(before, e history.Event) (PastEvent, bool) {
	p := PastEvent{Time: e.Time.UTC(), Type: e.Kind, Message: e.Message}
	switch sandbox.EventKind(e.Kind) {
	case sandbox.Created, sandbox.Existing:
		return p, false
	case sandbox.Exceeded, "denied":
		p.Bad = true
		return p, true
	case sandbox.Changed:
		if before.Seq != 0 && before.Sandbox.State == e.Sandbox.State && before.Sandbox.Message == e.Sandbox.Message {
			p.Message = cmp.Or(e.Message, "its settings were changed")
			return p, true
		}
		p.Type, p.Message = string(e.Sandbox.State), cmp.Or(e.Message, e.Sandbox.Message)
		p.Bad = e.Sandbox.State == sandbox.Failed
		// A limit that is exceeded is also the message of the sandbox.
		return p, before.Kind != string(sandbox.Exceeded) || before.Message != p.Message
	}
	return p, true
}

// DeletedSandbox is a deleted sandbox.
type DeletedSandbox struct {
	ID      string    `json:"id"`
	Name    string    `json:"name"`
	User    string    `json:"user,omitempty"`
	Time    time.Time `json:"deleted_at"`
	Reason  string    `json:"reason"`
	Restore bool      `json:"restorable" doc:"Whether it can still be restored"`
}

// Deleted lists deleted sandboxes.
func (s *Service) Deleted(ctx context.Context, in UserIn) ([]DeletedSandbox, error) {
	who, err := caller.Select(ctx, in.User)
	if err != nil {
		return nil, err
	}
	op.CallOf(ctx).Recorded = true
	held := map[string]bool{}
	if s.Bin != nil {
		held = s.Bin.IDs(ctx)
	}
	out := []DeletedSandbox{}
	for _, e := range slices.Backward(s.Tombstones.List(time.Now())) {
		if who.Has(e.Owner) {
			out = append(out, DeletedSandbox{e.ID, e.Name, e.Owner, e.At, e.Why, held[e.ID]})
		}
	}
	return out, nil
}
