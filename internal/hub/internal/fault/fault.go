// Package fault converts errors of a provider into errors for the hub's callers.
package fault

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// Delays for Retry-After.
const (
	RetrySoon      = time.Second
	RetryExhausted = 5 * time.Second
)

// NoSandbox reports that a sandbox does not exist, or is not visible to the caller.
func NoSandbox(name string) error {
	return op.Errorf(op.NotFound, "no sandbox %q; list sandboxes with GET /api/v1/sandbox, or create it", Clip(name))
}

// Deleted reports that a sandbox was deleted.
func Deleted(name string, at time.Time, why string) error {
	return op.Errorf(op.NotFound, "no sandbox %q: it was deleted on %s, because %s", Clip(name),
		at.UTC().Format("2 Jan 2006 at 15:04 MST"), why)
}

// CannotDo reports that a provider lacks an ability.
func CannotDo(provider, what string) error {
	return op.Errorf(op.Invalid, "provider %s cannot %s here; GET /api/v1/hub shows what it supports", provider, what)
}

// Clip shortens a name from a request.
func Clip(name string) string {
	if len(name) > sandbox.MaxName {
		return name[:sandbox.MaxName] + "…"
	}
	return name
}

// FromProvider converts an error of a provider about the named sandbox. Unknown errors stay internal
// errors.
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
		return op.Errorf(op.Conflict, "sandbox %q already exists; choose another name or delete it first", name)
	case errors.Is(err, sandbox.ErrInvalid), errors.Is(err, sandbox.ErrUnsupported):
		return Show(op.Invalid, "", err)
	case errors.Is(err, sandbox.ErrState):
		return Show(op.Conflict, "", err)
	case errors.Is(err, sandbox.ErrNotReady), errors.Is(err, sandbox.ErrUnavailable):
		return Show(op.Unavailable, "", err)
	case errors.Is(err, sandbox.ErrUpstream):
		return Show(op.Upstream, "", err)
	case errors.Is(err, sandbox.ErrExhausted):
		return &op.Error{Code: op.Exhausted, Msg: text(err), Err: err, RetryAfter: RetryExhausted}
	case errors.Is(err, sandbox.ErrClosed):
		return &op.Error{Code: op.Unavailable, Msg: "the hub is stopping; retry in a moment", Err: err, RetryAfter: RetrySoon}
	case errors.Is(err, context.Canceled):
		return Show(op.Canceled, "the client closed the connection: ", err)
	case errors.Is(err, context.DeadlineExceeded):
		return Show(op.Unavailable, "timed out: ", err)
	}
	return err
}

// Show returns an error for a caller, with what before its text. It shortens absolute paths to their last
// element, because callers must not learn where the hub stores its files.
func Show(code op.Code, what string, err error) error {
	return &op.Error{Code: code, Msg: what + text(err), Err: err}
}

func text(err error) string {
	all := err.Error()
	for _, path := range paths(err) {
		if filepath.IsAbs(path) {
			all = strings.ReplaceAll(all, path, filepath.Base(path))
		}
	}
	return all
}

// paths lists the paths in an error, the longest first.
func paths(err error) (all []string) {
	switch e := err.(type) { //nolint:errorlint // each level, not the first of a kind
	case nil:
		return nil
	case *fs.PathError:
		all = append(all, e.Path)
	case *os.LinkError:
		all = append(all, e.Old, e.New)
	}
	switch e := err.(type) { //nolint:errorlint // as above
	case interface{ Unwrap() error }:
		all = append(all, paths(e.Unwrap())...)
	case interface{ Unwrap() []error }:
		for _, one := range e.Unwrap() {
			all = append(all, paths(one)...)
		}
	}
	slices.SortFunc(all, func(a, b string) int { return len(b) - len(a) })
	return all
}
