package op

import (
	"net/http"
	"net/url"
	"time"
)

// Access is the permission that an operation requires.
type Access string

// The kinds of access. An empty value in a Spec requires write: operations for callers with read
// access are marked individually. An operation that changes nothing does not qualify, because it
// may show secrets, or run, wake or block a program.
const (
	AccessRead  Access = "read"
	AccessWrite Access = "write"
	AccessAdmin Access = "admin"
	// AccessWatch is read for callers that the owner lets watch: it shows what the sandbox shows.
	AccessWatch Access = "watch"
	// AccessSafe is read for GET and HEAD without an upgrade, otherwise write.
	AccessSafe Access = "safe"
)

// AccessHeader restricts the access of a request to read or watch. A hub sets it for callers that
// may not change the sandbox.
const AccessHeader = "X-Aio-Access"

// CallerHeader names the caller of a request to a sandbox. A hub sets it and replaces a value
// that the caller sent. A sandbox trusts it only on the socket that only its hub can open.
const CallerHeader = "X-Aio-Caller"

// SendCaller adds the caller to the headers of a request to a sandbox.
func (c *Call) SendCaller(h http.Header) {
	h.Del(CallerHeader)
	subject := c.Subject
	if c.Share != nil {
		subject = "link " + c.Share.ID
	}
	v := url.Values{"subject": {subject}, "key": {c.KeyID}}
	if c.Share != nil && c.Until != nil {
		v.Set("target", c.TargetName)
		v.Set("until", c.Until.UTC().Format(time.RFC3339))
	}
	if subject+c.KeyID != "" {
		h.Set(CallerHeader, v.Encode())
	}
}

// ReceiveCaller sets the caller from the value of CallerHeader.
func (c *Call) ReceiveCaller(value string) {
	if v, err := url.ParseQuery(value); err == nil {
		c.Subject, c.KeyID, c.TargetName = v.Get("subject"), v.Get("key"), v.Get("target")
		if until, err := time.Parse(time.RFC3339, v.Get("until")); err == nil {
			c.Until = &until
		}
	}
}

// RequiredAccess returns the access that a request needs; r is nil if the operation is
// not called over HTTP.
func (o Op) RequiredAccess(r *http.Request) Access {
	switch {
	case o.Access == AccessSafe && r != nil && isReadOnly(r):
		return AccessRead
	case o.Access == AccessSafe, o.Access == "":
		return AccessWrite
	}
	return o.Access
}

// isReadOnly reports whether a request cannot change anything. An upgraded connection can.
func isReadOnly(r *http.Request) bool {
	return (r.Method == http.MethodGet || r.Method == http.MethodHead) && r.Header.Get("Upgrade") == ""
}

// Share is temporary access to one sandbox, or to one port of it.
type Share struct {
	ID       string
	Sandbox  string // ID of the sandbox
	Port     int    // 0 means the whole sandbox
	ReadOnly bool
}
