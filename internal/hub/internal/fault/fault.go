// Package fault turns errors of a provider into errors for the hub's callers.
package fault

import (
	"context"
	"errors"
	"time"

	"github.com/cove-sandbox/cove/internal/op"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// When callers should try again.
const (
	RetrySoon      = time.Second
	RetryExhausted = 5 * time.Second
)

// NoSandbox says that a sandbox does not exist, at least for this caller.
func NoSandbox(name string) error {
	return op.Errorf(op.NotFound, "no sandbox %q; list sandboxes with GET /api/v1/sandbox, or create it", Clip(name))
}

// CannotDo says that a provider lacks an ability.
func CannotDo(provider, what string) error {
	return op.Errorf(op.Invalid, "provider %s cannot %s here; GET /api/v1/hub shows what it supports", provider, what)
}

// Clip shortens what a caller sent as a name.
func Clip(name string) string {
	if len(name) > sandbox.MaxName {
		return name[:sandbox.MaxName] + "…"
	}
	return name
}

// FromProvider explains an error that a provider returned for the named sandbox.
// What no caller can do anything about stays an internal error.
func FromProvider(name string, err error) error {
	if err == nil {
		return nil
	}
	if _, ok := op.AsError(err); ok {
		return err
	}
	switch {
	case errors.Is(err, sandbox.ErrNoSnapshot):
		return op.Errorf(op.NotFound, "no such snapshot; list snapshots with GET /api/v1/snapshot")
	case errors.Is(err, sandbox.ErrNoVolume):
		return op.Errorf(op.NotFound, "no such volume; list volumes with GET /api/v1/volume")
	case errors.Is(err, sandbox.ErrNotFound):
		return NoSandbox(name)
	case errors.Is(err, sandbox.ErrDeleted):
		return op.Errorf(op.Conflict, "sandbox %q was deleted before it was ready", name)
	case errors.Is(err, sandbox.ErrConflict):
		return op.Errorf(op.Conflict, "sandbox %q exists already; choose another name or delete it first", name)
	case errors.Is(err, sandbox.ErrInvalid), errors.Is(err, sandbox.ErrUnsupported):
		return op.Errorf(op.Invalid, "%w", err)
	case errors.Is(err, sandbox.ErrState):
		return op.Errorf(op.Conflict, "%w", err)
	case errors.Is(err, sandbox.ErrNotReady), errors.Is(err, sandbox.ErrUnavailable):
		return op.Errorf(op.Unavailable, "%w", err)
	case errors.Is(err, sandbox.ErrExhausted):
		return &op.Error{Code: op.Exhausted, Msg: err.Error(), Err: err, RetryAfter: RetryExhausted}
	case errors.Is(err, sandbox.ErrClosed):
		return &op.Error{Code: op.Unavailable, Msg: "the hub is stopping; retry in a moment", Err: err, RetryAfter: RetrySoon}
	case errors.Is(err, context.Canceled):
		return op.Errorf(op.Canceled, "the caller went away: %w", err)
	case errors.Is(err, context.DeadlineExceeded):
		return op.Errorf(op.Unavailable, "timed out: %w", err)
	}
	return err
}
