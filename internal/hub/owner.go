package hub

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"strings"

	"github.com/cove-sandbox/cove/internal/op"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// key is what a name means: names are unique for each owner.
type key struct{ owner, name string }

// owner is whose sandboxes this call may see and make. The empty one is the
// single owner of a hub that knows no others. A subject that is no plain name,
// such as an address of another system, is told by its digest, since owners
// are written into files, labels and objects.
func owner(ctx context.Context) string {
	subject := op.CallOf(ctx).Subject
	const digested = "sub-"
	plain := len(subject) <= 64 && !strings.HasPrefix(subject, digested) && !strings.HasPrefix(subject, "-") &&
		strings.Trim(subject, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._@-") == ""
	if plain {
		return subject
	}
	sum := sha256.Sum256([]byte(subject))
	return digested + hex.EncodeToString(sum[:20])
}

// find is the only way from a name to a sandbox: it knows the caller's own, and
// those of others do not exist. The ID is as good as the name; by it an admin
// finds those of all tenants, and a caller with a link the one that it is for.
func (h *Hub) find(ctx context.Context, name string) (sandbox.Sandbox, error) {
	call := op.CallOf(ctx)
	sb, err := h.seek(ctx, call, name)
	if err != nil {
		call.TargetName = clip(name)
		return sandbox.Sandbox{}, err
	}
	call.Target, call.TargetName = sb.ID, sb.Spec.Name
	return sb, nil
}

func (h *Hub) seek(ctx context.Context, call *op.Call, name string) (sandbox.Sandbox, error) {
	if sandbox.CheckName(name) != nil {
		return sandbox.Sandbox{}, noSandbox(name)
	}
	if call.Share != nil {
		if call.Share.Sandbox != name {
			return sandbox.Sandbox{}, noSandbox(name)
		}
		sb, err := h.cfg.Provider.Get(ctx, name)
		return sb, h.wire(name, err)
	}
	sb, err := h.own(ctx, key{owner(ctx), name})
	if e, ok := op.AsError(err); !ok || e.Code != op.NotFound || !strings.HasPrefix(name, idPrefix) {
		return sb, err
	}
	sb, gone := h.cfg.Provider.Get(ctx, name)
	if gone != nil || sb.Spec.Owner != owner(ctx) && !governs(call) {
		return sandbox.Sandbox{}, err
	}
	return sb, nil
}

// idPrefix begins the IDs of sandboxes.
const idPrefix = "sb-"

// own finds a sandbox by its owner and name.
func (h *Hub) own(ctx context.Context, k key) (sandbox.Sandbox, error) {
	name := k.name
	h.mu.Lock()
	id, known := h.names[k]
	h.mu.Unlock()
	if known {
		sb, err := h.cfg.Provider.Get(ctx, id)
		if err == nil && k.of(sb) {
			return sb, nil
		}
		if err != nil && !errors.Is(err, sandbox.ErrNotFound) {
			return sandbox.Sandbox{}, h.wire(name, err)
		}
	}
	list, err := h.cfg.Provider.List(ctx, sandbox.Filter{Owner: k.owner, Name: k.name})
	if err != nil {
		return sandbox.Sandbox{}, h.wire(name, err)
	}
	for _, sb := range list {
		// A filter without an owner selects everybody's.
		if k.of(sb) {
			h.mu.Lock()
			h.names[k] = sb.ID
			h.mu.Unlock()
			return sb, nil
		}
	}
	h.mu.Lock()
	delete(h.names, k)
	h.mu.Unlock()
	return sandbox.Sandbox{}, noSandbox(name)
}

func (k key) of(sb sandbox.Sandbox) bool { return sb.Spec.Owner == k.owner && sb.Spec.Name == k.name }

func noSandbox(name string) error {
	return op.Errorf(op.NotFound, "there is no sandbox %q; list them with GET /api/v1/sandbox, or create it", clip(name))
}

// clip shortens what a caller took for a name.
func clip(name string) string {
	if len(name) > sandbox.MaxName {
		return name[:sandbox.MaxName] + "…"
	}
	return name
}

// wire turns an error of the provider into one for the caller. What is nobody
// else's fault stays an error of ours.
func (h *Hub) wire(name string, err error) error {
	if err == nil {
		return nil
	}
	if _, ok := op.AsError(err); ok {
		return err
	}
	switch {
	case errors.Is(err, sandbox.ErrNoSnapshot):
		return op.Errorf(op.NotFound, "there is no such snapshot; list them with GET /api/v1/snapshot")
	case errors.Is(err, sandbox.ErrNoVolume):
		return op.Errorf(op.NotFound, "there is no such volume; list them with GET /api/v1/volume")
	case errors.Is(err, sandbox.ErrNotFound):
		return noSandbox(name)
	case errors.Is(err, sandbox.ErrDeleted):
		return op.Errorf(op.Conflict, "sandbox %q was deleted before it was ready", name)
	case errors.Is(err, sandbox.ErrConflict):
		return op.Errorf(op.Conflict, "there is a sandbox %q already; choose another name or delete that one", name)
	case errors.Is(err, sandbox.ErrInvalid), errors.Is(err, sandbox.ErrUnsupported):
		return op.Errorf(op.Invalid, "%w", err)
	case errors.Is(err, sandbox.ErrState):
		return op.Errorf(op.Conflict, "%w", err)
	case errors.Is(err, sandbox.ErrNotReady):
		return op.Errorf(op.Unavailable, "%w", err)
	case errors.Is(err, sandbox.ErrExhausted):
		return &op.Error{Code: op.Exhausted, Msg: err.Error(), Err: err, RetryAfter: retryExhausted}
	case errors.Is(err, sandbox.ErrClosed), h.life.Err() != nil:
		return &op.Error{Code: op.Unavailable, Msg: "the hub is stopping; ask again in a moment", Err: err, RetryAfter: retrySoon}
	case errors.Is(err, context.Canceled):
		return op.Errorf(op.Canceled, "the caller went away: %w", err)
	case errors.Is(err, context.DeadlineExceeded):
		return op.Errorf(op.Unavailable, "it took too long: %w", err)
	}
	return err
}
