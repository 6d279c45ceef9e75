package secretstore

import (
	"fmt"
	"io"
	"log/slog"
)

const redacted = "[redacted]"

// Value is a text that must not be shown. However it is printed, logged or
// encoded, it shows as "[redacted]"; only Reveal gives it away.
type Value struct {
	// A pointer, since printing a struct that holds a Value in a field of its own
	// would otherwise show what is inside without asking us.
	p *string
}

// New hides a string.
func New(s string) Value { return Value{&s} }

// Reveal returns the text.
func (v Value) Reveal() string {
	if v.p == nil {
		return ""
	}
	return *v.p
}

// String hides the value from everything that prints.
func (Value) String() string { return redacted }

// Format hides it from all verbs.
func (Value) Format(s fmt.State, _ rune) { io.WriteString(s, redacted) }

// LogValue hides it from logs.
func (Value) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalText hides it from JSON, YAML and all others that encode text.
func (Value) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// MarshalBinary hides it from encodings that prefer bytes.
func (Value) MarshalBinary() ([]byte, error) { return []byte(redacted), nil }
