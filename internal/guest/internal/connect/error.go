package connect

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/cove-sandbox/cove/internal/api/op"
)

// Code is an error code of the protocol.
type Code string

// The codes that services use.
const (
	Canceled           Code = "canceled"
	Unknown            Code = "unknown"
	InvalidArgument    Code = "invalid_argument"
	DeadlineExceeded   Code = "deadline_exceeded"
	NotFound           Code = "not_found"
	AlreadyExists      Code = "already_exists"
	PermissionDenied   Code = "permission_denied"
	ResourceExhausted  Code = "resource_exhausted"
	FailedPrecondition Code = "failed_precondition"
	Unimplemented      Code = "unimplemented"
	Internal           Code = "internal"
	Unavailable        Code = "unavailable"
	Unauthenticated    Code = "unauthenticated"
)

// HTTPStatus returns the status of a unary response with this code.
func (c Code) HTTPStatus() int {
	switch c {
	case InvalidArgument, FailedPrecondition:
		return http.StatusBadRequest
	case Unauthenticated:
		return http.StatusUnauthorized
	case PermissionDenied:
		return http.StatusForbidden
	case NotFound:
		return http.StatusNotFound
	case AlreadyExists:
		return http.StatusConflict
	case ResourceExhausted:
		return http.StatusTooManyRequests
	case Canceled:
		return 499
	case Unimplemented:
		return http.StatusNotImplemented
	case Unavailable:
		return http.StatusServiceUnavailable
	case DeadlineExceeded:
		return http.StatusGatewayTimeout
	}
	return http.StatusInternalServerError
}

// Error is an error that the caller sees.
type Error struct {
	Code    Code   `json:"code"`
	Message string `json:"message,omitempty"`
}

func (e *Error) Error() string { return e.Message }

// Errorf returns an Error.
func Errorf(code Code, format string, args ...any) error {
	return &Error{code, fmt.Sprintf(format, args...)}
}

// codes translates the codes of operations.
var codes = map[op.Code]Code{
	op.Invalid: InvalidArgument, op.Unauthenticated: Unauthenticated, op.Denied: PermissionDenied,
	op.NotFound: NotFound, op.Conflict: FailedPrecondition,
	op.Exhausted: ResourceExhausted, op.TooLarge: ResourceExhausted, op.Unavailable: Unavailable,
	op.Canceled: Canceled, op.Internal: Internal, op.Unsupported: Unimplemented,
}

// AsError converts any error into one for the caller.
func AsError(err error) *Error {
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	if e, ok := op.AsError(err); ok {
		return &Error{codes[e.Code], e.Msg}
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return &Error{DeadlineExceeded, "the timeout of the request has expired"}
	case errors.Is(err, context.Canceled):
		return &Error{Canceled, "the request was canceled"}
	}
	return &Error{Internal, err.Error()}
}
