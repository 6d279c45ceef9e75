package lifecycle

import (
	"cmp"
	"context"
	"errors"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/hub/internal/caller"
	"github.com/cove-sandbox/cove/internal/hub/internal/fault"
	"github.com/cove-sandbox/cove/internal/hub/internal/naming"
	"github.com/cove-sandbox/cove/internal/hub/internal/trash"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

func undeleteOp(s *Service) op.Op {
	return op.New(op.Spec{Name: "sandbox_undelete", Route: "POST " + one + "/undelete", Tag: "sandbox", Verb: "undelete",
		Doc: "Restore a sandbox with its disk, within an hour after it was deleted on request. It must have been created with " +
			"keep, as cove and the pages do. It is stopped, and the next request starts it. If disk space is needed meanwhile, " +
			"deleted sandboxes cannot be restored."}, s.Undelete)
}

// UndeleteIn selects a deleted sandbox.
type UndeleteIn struct {
	Name    string `path:"name" doc:"Name that the sandbox had, or its ID"`
	NewName string `json:"new_name" default:"" nullable:"true" doc:"New name. Default: the name that it had"`
}

// Undelete restores a deleted sandbox.
func (s *Service) Undelete(ctx context.Context, in UndeleteIn) (Object, error) {
	sb, done, err := takeDeleted(ctx, s, in.Name)
	if err != nil {
		return Object{}, err
	}
	defer done()
	name := cmp.Or(in.NewName, trash.Name(sb))
	if err := sandbox.CheckNewName(name); err != nil {
		return Object{}, fault.FromProvider(in.Name, err)
	}
	room, err := s.Quota.Reserve(ctx, sb.Spec.Owner, sb.Spec)
	if err != nil {
		return Object{}, err
	}
	defer room.Release()
	if sb, err = s.Bin.Restore(ctx, sb.ID, name); err != nil {
		return Object{}, fault.FromProvider(name, err)
	}
	room.Commit(ctx, 0, sb.ID)
	call := op.CallOf(ctx)
	call.Target, call.TargetName = sb.ID, sb.Spec.Name
	s.Fleet.Observe(sb)
	return s.Show(ctx, sb), nil
}

// takeDeleted finds a deleted sandbox of the caller. Admins find those of others by ID. A link ends with
// its sandbox, so it finds none.
func takeDeleted(ctx context.Context, s *Service, name string) (sb sandbox.Sandbox, done func(), err error) {
	call, err := op.CallOf(ctx), sandbox.ErrNotFound
	if s.Bin != nil && call.Share == nil && sandbox.CheckName(name) == nil {
		owner, admin, id := caller.Owner(ctx), caller.IsAdmin(call), name
		if parsed, ok := naming.ParseE2BID(name); ok {
			id = parsed
		}
		sb, done, err = s.Bin.Take(ctx, func(sb sandbox.Sandbox) bool {
			own := sb.Spec.Owner == owner
			return own && trash.Name(sb) == name || sb.ID == id && (own || admin)
		})
	}
	if !errors.Is(err, sandbox.ErrNotFound) {
		return sb, done, fault.FromProvider(name, err)
	}
	if _, err := s.Fleet.Find(ctx, name); err == nil {
		return sb, nil, op.Errorf(op.Conflict, "sandbox %q is not deleted", name)
	}
	return sb, nil, op.Errorf(op.NotFound, "no deleted sandbox %q: only sandboxes that were created with keep can be restored, for "+
		"%v minutes after their deletion", fault.Clip(name), trash.Keep.Minutes())
}
