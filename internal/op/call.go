package op

import (
	"context"
	"fmt"
	"net/url"
)

// Call is what a surface knows about one call and what the operation wants to
// say beside its output. A surface makes one per call.
type Call struct {
	ID      string   // request id
	Subject string   // who signed in
	Role    string   // what they may do, where the program knows roles
	KeyID   string   // of the key they came with
	Share   *Share   // not nil: they came with a link, and may reach this only
	Via     string   // rest, mcp
	Base    *url.URL // the sandbox as the caller reaches it: scheme, host, path prefix

	LastEventID string // where a stream goes on

	Message string
	Hint    string

	// For the record: what the call turned out to be about, how it failed, and
	// whether that is written down already.
	Target     string // ID
	TargetName string
	Detail     string // what was called there
	Code       Code
	Recorded   bool
}

type callKey struct{}

// WithCall returns a context that carries the call.
func WithCall(ctx context.Context, c *Call) context.Context {
	return context.WithValue(ctx, callKey{}, c)
}

// CallOf returns the call; outside of one, an empty one.
func CallOf(ctx context.Context) *Call {
	if c, ok := ctx.Value(callKey{}).(*Call); ok {
		return c
	}
	return &Call{}
}

// Say sets the reply's message.
func Say(ctx context.Context, format string, args ...any) {
	CallOf(ctx).Message = fmt.Sprintf(format, args...)
}

// Hint sets the reply's hint.
func Hint(ctx context.Context, format string, args ...any) {
	CallOf(ctx).Hint = fmt.Sprintf(format, args...)
}

// URL is an address of this sandbox as the caller reaches it: path is absolute
// and goes behind the prefix.
func (c *Call) URL(scheme, path, query string) string {
	if c.Base == nil {
		return path
	}
	u := *c.Base
	switch {
	case scheme == "ws" && u.Scheme == "https":
		u.Scheme = "wss"
	case scheme == "ws":
		u.Scheme = "ws"
	}
	u.Path += path
	u.RawQuery = query
	return u.String()
}

// Envelope is what most replies are wrapped in. An output of style Own embeds it.
type Envelope struct {
	Success bool    `json:"success" doc:"Whether the operation did what was asked"`
	Message *string `json:"message" doc:"What happened, and after a failure what to do next"`
	Hint    *string `json:"hint" doc:"Advice beside the result"`
}

// DefaultMessage is said when an operation says nothing.
const DefaultMessage = "Operation successful"

// Sealed is the envelope of a success.
func Sealed(ctx context.Context) Envelope {
	c := CallOf(ctx)
	e := Envelope{Success: true, Message: new(DefaultMessage)}
	if c.Message != "" {
		e.Message = &c.Message
	}
	if c.Hint != "" {
		e.Hint = &c.Hint
	}
	return e
}
