package sandbox

import "errors"

// The errors of providers, which wrap them with details; test with errors.Is.
var (
	ErrNotFound    = errors.New("no such sandbox")
	ErrConflict    = errors.New("name already taken")
	ErrInvalid     = errors.New("invalid sandbox spec")
	ErrState       = errors.New("not possible in this state")
	ErrUnsupported = errors.New("not supported by this provider")
	ErrNotReady    = errors.New("sandbox did not become ready")
	ErrExhausted   = errors.New("out of resources")
	ErrInUse       = errors.New("state is in use by another hub")
	ErrUnavailable = errors.New("not available at the moment")
	ErrUpstream    = errors.New("an external service failed")
	ErrClosed      = errors.New("provider is closed")
)

// Errors for other missing objects. They are also ErrNotFound.
var (
	ErrNoSnapshot error = &missing{"no such snapshot"}
	ErrNoVolume   error = &missing{"no such volume"}
)

type missing struct{ text string }

func (m *missing) Error() string        { return m.text }
func (m *missing) Is(target error) bool { return target == ErrNotFound }
