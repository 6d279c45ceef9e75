package op

import (
	"context"
	"fmt"
	"net/url"
	"time"
)

// Call contains the attributes of one call that a surface knows, and those that the operation
// adds to its output. A surface creates one for each call.
type Call struct {
	ID      string     // request ID
	Subject string     // the authenticated caller
	Role    string     // role of the caller, if the program has roles
	KeyID   string     // ID of the caller's key
	Share   *Share     // the link that limits the caller's access; nil without a link
	Reader  bool       // the caller may only read
	Until   *time.Time // when the caller's link expires; nil without a link
	Via     string     // the surface: rest, mcp, or page for a built-in page
	Base    *url.URL   // URL at which the caller reaches the server: scheme, host, path prefix

	// Owned means that processes of the call end with its context. By default, a canceled call
	// only stops waiting for them.
	Owned bool
	// Progress reports the progress of the call; nil if the caller has not requested it. total
	// is 0 if unknown.
	Progress func(done, total float64, message string) `json:"-"`

	LastEventID string // ID of the last event that the caller of a stream received

	Message string
	Hint    string

	// For responses of style Coded: the status, if it differs from the Spec, and headers.
	Status int
	Header map[string]string

	// For the audit log: the sandbox that the call acts on, how the call failed, and
	// whether it is already logged.
	Target     string // ID of the sandbox
	TargetName string
	Detail     string // the operation in the sandbox
	Code       Code
	Recorded   bool
}

type callKey struct{}

// WithCall returns a context that carries the call.
func WithCall(ctx context.Context, c *Call) context.Context {
	return context.WithValue(ctx, callKey{}, c)
}

// CallOf returns the call that ctx carries, or an empty one.
func CallOf(ctx context.Context) *Call {
	if c, ok := ctx.Value(callKey{}).(*Call); ok {
		return c
	}
	return &Call{}
}

// Say sets the message of the response.
func Say(ctx context.Context, format string, args ...any) {
	CallOf(ctx).Message = fmt.Sprintf(format, args...)
}

// Hint sets the hint of the response.
func Hint(ctx context.Context, format string, args ...any) {
	CallOf(ctx).Hint = fmt.Sprintf(format, args...)
}

// URL returns a URL at which the caller can reach path on this server. path is absolute and
// follows the prefix of the base URL.
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

// Envelope wraps most responses. An output of style Own embeds it.
type Envelope struct {
	Success bool    `json:"success" doc:"Whether the operation succeeded"`
	Message *string `json:"message" doc:"What happened and, after a failure, what to do next"`
	Hint    *string `json:"hint" doc:"Advice on the result"`
}

// DefaultMessage is the message of an operation that sets none.
const DefaultMessage = "Operation successful"

// SuccessEnvelope returns the envelope of a successful call.
func SuccessEnvelope(ctx context.Context) Envelope {
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
