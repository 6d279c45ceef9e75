package agentsandbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// The conditions that we set. Created is ours: with it, an object whose sandbox is gone does not get another.
const (
	readyCondition    = "Ready"
	finishedCondition = "Finished"
	createdCondition  = "Created"
)

// report tells how the sandbox of an object is, and brings it into the state that the object asks for.
func (s *Service) report(ctx context.Context, k key, kind string, o *object, id string) time.Time {
	sb, err := s.Provider.Get(ctx, id)
	switch {
	case errors.Is(err, sandbox.ErrNotFound):
		s.disown(k, o.Metadata.UID)
		return s.finish(ctx, k, kind, o, "SandboxMissing", "the sandbox was deleted; delete this object and create it again to get another")
	case err != nil:
		return s.later(k, "show the sandbox of", err)
	}
	var trouble error
	if k.resource == sandboxes {
		sb, trouble = s.steer(ctx, o, sb)
	}
	ready := condition{Status: "False", Reason: "SandboxNotReady", Message: fmt.Sprintf("sandbox %q is %s", sb.Spec.Name, sb.State)}
	switch {
	case trouble != nil:
		ready.Message = messageOf(trouble)
	case sb.State == sandbox.Running:
		ready.Status, ready.Reason = "True", "DependenciesReady"
		ready.Message = fmt.Sprintf("sandbox %q (%s) of %q is at /sandbox/%s/ of the hub", sb.Spec.Name, sb.ID, sb.Spec.Owner, sb.ID)
	case sb.State == sandbox.Paused || sb.State == sandbox.Stopped:
		ready.Reason = "SandboxSuspended"
	case sb.State == sandbox.Failed:
		ready.Reason, ready.Message = "SandboxFailed", "the sandbox has failed: "+sb.Message
	}
	finished := condition{Type: finishedCondition, Status: "False", Reason: "SandboxExists", Message: "the sandbox exists"}
	if sb.State == sandbox.Failed {
		finished.Status, finished.Reason, finished.Message = "True", "PodFailed", sb.Message
	}
	made := condition{Type: createdCondition, Status: "True", Reason: "SandboxCreated", Message: sb.ID}
	again := s.tell(ctx, k, kind, o, ready, made, finished)
	if trouble != nil && again.IsZero() {
		again = time.Now().Add(maxRetry)
	}
	return again
}

// steer stops or starts the sandbox of a Sandbox object, as that asks for.
func (s *Service) steer(ctx context.Context, o *object, sb sandbox.Sandbox) (sandbox.Sandbox, error) {
	var name string
	switch {
	case o.suspended() && sb.State == sandbox.Running:
		name = "claim_stop"
	case !o.suspended() && sb.State == sandbox.Stopped:
		name = "claim_start"
	default:
		return sb, nil
	}
	if _, err := s.ops[name].Call(as(ctx, sb.Spec.Owner), sb.ID); err != nil {
		return sb, err
	}
	now, err := s.Provider.Get(ctx, sb.ID)
	if err != nil {
		return sb, err
	}
	return now, nil
}

// messageOf is an error as the reader of an object may see it.
func messageOf(err error) string {
	if e, ok := op.AsError(err); ok {
		return e.Msg
	}
	return "the sandbox could not be changed; the hub's log has the details"
}

// finish tells that an object has no sandbox any more, and will not get one.
func (s *Service) finish(ctx context.Context, k key, kind string, o *object, reason, message string) time.Time {
	return s.tell(ctx, k, kind, o, condition{Status: "False", Reason: reason, Message: message},
		condition{Type: finishedCondition, Status: "True", Reason: reason, Message: message})
}

// tell writes conditions of an object, the first of which is Ready, if they differ from those that it has.
func (s *Service) tell(ctx context.Context, k key, kind string, o *object, ready condition, more ...condition) time.Time {
	ready.Type = readyCondition
	next := o.Status
	for _, c := range append([]condition{ready}, more...) {
		c.Generation = o.Metadata.Generation
		next = next.with(c, time.Now())
	}
	if slices.Equal(next.Conditions, o.Status.Conditions) {
		return time.Time{}
	}
	out := map[string]any{"conditions": next.Conditions}
	if k.resource == claims {
		if id, ok := s.ownedBy(k)[o.Metadata.UID]; ok {
			if sb, err := s.Provider.Get(ctx, id); err == nil {
				out["sandbox"] = map[string]any{"name": sb.Spec.Name}
			}
		}
	}
	err := s.Cluster.SetStatus(ctx, kind, k.namespace, k.name, o.Metadata.UID, out)
	if errors.Is(err, sandbox.ErrNotFound) {
		return time.Time{} // the watch tells
	}
	if err != nil {
		return s.later(k, "write the status of", err)
	}
	s.remember(k, o.Metadata.UID, next)
	return time.Time{}
}

// remember keeps the status that was written: the watch may be late.
func (s *Service) remember(k key, uid string, next status) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o := s.spaces[k.namespace].objects[k.resource][k.name]; o != nil && o.Metadata.UID == uid {
		changed := *o
		changed.Status = next
		s.spaces[k.namespace].objects[k.resource][k.name] = &changed
	}
}
