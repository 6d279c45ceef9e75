package op

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// Code is the kind of a failure. Surfaces map it to a status or an exit code.
type Code string

// The kinds of failures.
const (
	Invalid         Code = "invalid"
	Unauthenticated Code = "unauthenticated"
	Denied          Code = "denied"
	NotFound        Code = "not_found"
	Conflict        Code = "conflict"
	Exhausted       Code = "exhausted"
	TooLarge        Code = "too_large"
	Unavailable     Code = "unavailable"
	Upstream        Code = "upstream" // an external service failed
	Canceled        Code = "canceled"
	Unsupported     Code = "unsupported"
	Internal        Code = "internal"
)

// StatusCanceled is the status of a request whose client closed the connection, as in nginx.
const StatusCanceled = 499

// HTTPStatus returns the HTTP status of a failure with this code.
func (c Code) HTTPStatus() int {
	switch c {
	case Invalid:
		return http.StatusBadRequest
	case Unauthenticated:
		return http.StatusUnauthorized
	case Denied:
		return http.StatusForbidden
	case NotFound:
		return http.StatusNotFound
	case Conflict:
		return http.StatusConflict
	case Exhausted:
		return http.StatusTooManyRequests
	case TooLarge:
		return http.StatusRequestEntityTooLarge
	case Unavailable:
		return http.StatusServiceUnavailable
	case Upstream:
		return http.StatusBadGateway
	case Canceled:
		return StatusCanceled
	case Unsupported:
		return http.StatusNotImplemented
	}
	return http.StatusInternalServerError
}

// Error is a failure that is safe to show to the caller. Any other error is a bug: it is logged,
// and the caller sees only the request ID.
type Error struct {
	Code Code
	Msg  string // what failed, why, and what to do
	Hint string
	Data any // data of the response
	// RetryAfter is the time after which the caller can retry; 0 if unknown.
	RetryAfter time.Duration
	Err        error
}

func (e *Error) Error() string { return e.Msg }
func (e *Error) Unwrap() error { return e.Err }

// Errorf returns an Error; %w keeps its cause.
func Errorf(c Code, format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	return &Error{Code: c, Msg: err.Error(), Err: errors.Unwrap(err)}
}

// AsError finds the Error in a chain.
func AsError(err error) (*Error, bool) { return errors.AsType[*Error](err) }

// InternalMessage returns the message for an error that is not an Error. id is the request ID in
// the log.
func InternalMessage(id string) string {
	return "Internal error; the server log has the details under request ID " + id
}

// Fault is one error in the input.
type Fault struct {
	Type string `json:"type"`
	Loc  []any  `json:"loc"`
	Msg  string `json:"msg"`
}

// Faults are all errors in an input.
type Faults []Fault

func (f Faults) Error() string {
	var b strings.Builder
	for i, fault := range f {
		if i > 0 {
			b.WriteString("; ")
		}
		for j, l := range fault.Loc {
			if j > 0 {
				b.WriteByte('.')
			}
			fmt.Fprint(&b, l)
		}
		b.WriteString(": ")
		b.WriteString(fault.Msg)
	}
	return b.String()
}
