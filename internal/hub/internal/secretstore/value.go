package secretstore

import (
	"fmt"
	"io"
	"log/slog"
)

const redacted = "[redacted]"

// Value is a secret text. Printed, logged or encoded, it is "[redacted]"; only Reveal returns it.
type Value struct {
	// A pointer, because printing a struct with an unexported Value field does not call its methods.
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

// String hides the value from printing.
func (Value) String() string { return redacted }

// Format hides it from all verbs.
func (Value) Format(s fmt.State, _ rune) { _, _ = io.WriteString(s, redacted) }

// LogValue hides it from logs.
func (Value) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalText hides it from JSON, YAML and other text encodings.
func (Value) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// MarshalBinary hides it from binary encodings.
func (Value) MarshalBinary() ([]byte, error) { return []byte(redacted), nil }
