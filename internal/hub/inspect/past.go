package inspect

import (
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
				"The hub remembers the latest events of all sandboxes since its start, and those of a deleted sandbox for a day."}, s.Past),
		op.New(op.Spec{Name: "sandbox_deleted", Access: op.AccessRead, Route: "GET /api/v1/deleted", Tag: "sandbox",
			Verb: "deletions", ReadOnly: true, NoTool: true, Columns: []string{"name", "deleted_at", "reason"}, Wide: []string{"id", "user"},
			Doc: "List the sandboxes that were deleted during the last day, newest first, with the reason."}, s.Deleted),
	}
}

// maxPast limits the events in a reply.
const maxPast = 200

// Past returns what happened to a sandbox.
func (s *Service) Past(ctx context.Context, in lifecycle.NameIn) ([]history.Moment, error) {
	sb, err := s.Fleet.Find(ctx, in.Name)
	if err != nil {
		if e, ok := s.Tombstones.Find(caller.Owner(ctx), in.Name, time.Now()); ok && op.CallOf(ctx).Share == nil {
			return append([]history.Moment{{Time: e.At, Type: string(sandbox.Deleted), Message: e.Why}}, e.Past...), nil
		}
		return nil, err
	}
	op.CallOf(ctx).Recorded = true
	out := s.History.Story(sb)
	return out[:min(len(out), maxPast)], nil
}

// DeletedSandbox is a deleted sandbox.
type DeletedSandbox struct {
	ID      string    `json:"id"`
	Name    string    `json:"name"`
	User    string    `json:"user,omitempty"`
	Time    time.Time `json:"deleted_at"`
	Reason  string    `json:"reason"`
	Restore bool      `json:"restorable" doc:"Whether it can still be restored"`

	History []history.Moment `json:"history" doc:"What happened before, newest first; only for the latest deletions"`
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
			out = append(out, DeletedSandbox{e.ID, e.Name, e.Owner, e.At, e.Why, held[e.ID], append([]history.Moment{}, e.Past...)})
		}
	}
	return out, nil
}
