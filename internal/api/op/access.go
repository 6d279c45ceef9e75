package op

import (
	"net/http"
	"net/url"
)

// Access is the permission that an operation requires.
type Access string

// The kinds of access. A Spec that leaves it empty requires write: what a caller with
// read access may use is listed, operation by operation. That an operation changes nothing
// is not enough, since it may show secrets, or run, wake or block something.
const (
	AccessRead  Access = "read"
	AccessWrite Access = "write"
	AccessAdmin Access = "admin"
	// AccessSafe is read for GET and HEAD without an upgrade, otherwise write.
	AccessSafe Access = "safe"
)

// AccessHeader restricts a request to what it names, which can only be "read". A hub sets
// it for callers who may not change the sandbox.
const AccessHeader = "X-Aio-Access"

// CallerHeader names the caller of a request to a sandbox. A hub sets it, in place of whatever
// the caller sent; a sandbox believes it only on the socket that its hub alone can open.
const CallerHeader = "X-Aio-Caller"

// SendCaller puts who calls into the headers of a request to a sandbox.
func (c *Call) SendCaller(h http.Header) {
	h.Del(CallerHeader)
	subject := c.Subject
	if c.Share != nil {
		subject = "link " + c.Share.ID
	}
	if subject+c.KeyID != "" {
		h.Set(CallerHeader, url.Values{"subject": {subject}, "key": {c.KeyID}}.Encode())
	}
}

// ReceiveCaller takes who calls from the value of CallerHeader.
func (c *Call) ReceiveCaller(value string) {
	if v, err := url.ParseQuery(value); err == nil {
		c.Subject, c.KeyID = v.Get("subject"), v.Get("key")
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

// isReadOnly reports whether a request cannot change anything. An upgraded connection
// can carry anything.
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
