package op

import "net/http"

// Access is what a caller must be allowed to do.
type Access string

// The kinds of access. The empty one is derived: read for what is ReadOnly, for a
// raw handler read where the request can only look, otherwise write.
const (
	AccessRead  Access = "read"
	AccessWrite Access = "write"
	AccessAdmin Access = "admin"
)

// Needs is the access that a request for the operation takes; r is nil where the
// operation is called by other means.
func (o Op) Needs(r *http.Request) Access {
	switch {
	case o.Access != "":
		return o.Access
	case o.ReadOnly:
		return AccessRead
	case o.Handler != nil && r != nil && looks(r):
		return AccessRead
	}
	return AccessWrite
}

// looks tells whether a request can only look: a connection that is upgraded
// takes anything afterwards.
func looks(r *http.Request) bool {
	return (r.Method == http.MethodGet || r.Method == http.MethodHead) && r.Header.Get("Upgrade") == ""
}

// Share is leave to reach one sandbox, or one port of it, for a while.
type Share struct {
	ID       string
	Sandbox  string // its ID
	Port     int    // 0: all of it
	ReadOnly bool
}
