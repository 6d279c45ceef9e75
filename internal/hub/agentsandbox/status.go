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

// The conditions that we set. Created is our own: an object with it does not get another sandbox.
const (
	readyCondition    = "Ready"
	finishedCondition = "Finished"
	createdCondition  = "Created"
)

// report writes the state of the sandbox of an object, and starts or stops it as the object requires.
func (s *Service) report(ctx context.Context, k key, kind string, o *object, id string) time.Time {
	sb, err := s.Provider.Get(ctx, id)
	switch {
	case errors.Is(err, sandbox.ErrNotFound):
		s.disown(k, o.Metadata.UID)
		return s.finish(ctx, k, kind, o, "SandboxMissing", "the sandbox was deleted; recreate this object to get a new one")
	case err != nil:
		return s.later(k, "get sandbox", err)
	}
	var failure error
	if k.resource == sandboxes {
		sb, failure = s.setRunning(ctx, o, sb)
	}
	ready := condition{Status: "False", Reason: "SandboxNotReady", Message: fmt.Sprintf("sandbox %q is %s", sb.Spec.Name, sb.State)}
	switch {
	case failure != nil:
		ready.Message = messageOf(failure)
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
	again := s.setConditions(ctx, k, kind, o, ready, made, finished)
	if failure != nil && again.IsZero() {
		again = time.Now().Add(maxRetry)
	}
	return again
}

// setRunning stops or starts the sandbox of a Sandbox object as the object requires.
func (s *Service) setRunning(ctx context.Context, o *object, sb sandbox.Sandbox) (sandbox.Sandbox, error) {
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

// messageOf returns the text of an error for the status of an object.
func messageOf(err error) string {
	if e, ok := op.AsError(err); ok {
		return e.Msg
	}
	return "cannot change the sandbox; see the log of the hub"
}

// finish reports that the sandbox of an object is gone for good.
func (s *Service) finish(ctx context.Context, k key, kind string, o *object, reason, message string) time.Time {
	return s.setConditions(ctx, k, kind, o, condition{Status: "False", Reason: reason, Message: message},
		condition{Type: finishedCondition, Status: "True", Reason: reason, Message: message})
}

// setConditions writes the conditions of an object, the first of which is Ready, if they changed.
func (s *Service) setConditions(ctx context.Context, k key, kind string, o *object, ready condition, more ...condition) time.Time {
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
		return time.Time{} // the watch reports it
	}
	if err != nil {
		return s.later(k, "write status", err)
	}
	s.remember(k, o.Metadata.UID, next)
	return time.Time{}
}

// remember keeps the written status, because the watch can be late.
func (s *Service) remember(k key, uid string, next status) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o := s.spaces[k.namespace].objects[k.resource][k.name]; o != nil && o.Metadata.UID == uid {
		changed := *o
		changed.Status = next
		s.spaces[k.namespace].objects[k.resource][k.name] = &changed
	}
}
