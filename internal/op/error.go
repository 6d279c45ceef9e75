package op

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// Code is the kind of a failure. Surfaces turn it into a status, an exit code.
type Code string

const (
	Invalid         Code = "invalid"
	Unauthenticated Code = "unauthenticated"
	Denied          Code = "denied"
	NotFound        Code = "not_found"
	Conflict        Code = "conflict"
	Exhausted       Code = "exhausted"
	TooLarge        Code = "too_large"
	Unavailable     Code = "unavailable"
	Canceled        Code = "canceled"
	Internal        Code = "internal"
)

// Error is a failure that is safe to show. Any other error is ours: it is logged
// and shown only as an id.
type Error struct {
	Code Code
	Msg  string // says what to do next
	Hint string
	Data any // goes into the reply's data
	// RetryAfter tells the caller when to come back; 0: nothing is known.
	RetryAfter time.Duration
	Err        error
}

func (e *Error) Error() string { return e.Msg }
func (e *Error) Unwrap() error { return e.Err }

// Errorf makes an Error; %w keeps its cause.
func Errorf(c Code, format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	return &Error{Code: c, Msg: err.Error(), Err: errors.Unwrap(err)}
}

// AsError finds the Error in a chain.
func AsError(err error) (*Error, bool) { return errors.AsType[*Error](err) }

// Fault is one thing wrong with the input.
type Fault struct {
	Type string `json:"type"`
	Loc  []any  `json:"loc"`
	Msg  string `json:"msg"`
}

// Faults are all things wrong with an input.
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
