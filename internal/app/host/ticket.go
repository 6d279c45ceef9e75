package host

import (
	"context"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
)

// Issuer issues one-time tickets.
type Issuer interface {
	Issue(ctx context.Context) (ticket string, ttl time.Duration, err error)
}

// Tickets provides authentication as operations: one-time tickets for URLs that a browser
// opens, and a check for reverse proxies.
type Tickets struct{ Issuer Issuer }

// Ops returns the operations.
func (s Tickets) Ops() []op.Op {
	return []op.Op{
		op.New(op.Spec{Name: "auth_create_ticket", Route: "POST /tickets", Tag: "auth", SDK: "auth.create_ticket",
			Style: op.Resource, NoTool: true, Verb: "auth ticket",
			Doc: "Create a one-time ticket that authenticates a browser: append ?ticket=… to the URL before the " +
				"ticket expires. The browser then gets a session cookie."}, s.Create),
		op.New(op.Spec{Name: "auth_check", Access: op.AccessRead, Route: "GET /auth", Tag: "auth",
			SDK: "auth.authenticate", Style: op.Resource, NoTool: true, ReadOnly: true, Verb: "auth check",
			Doc: "Show the authenticated identity of the request. A reverse proxy can call this to authorize requests."}, s.Check),
	}
}

// Close does nothing.
func (s Tickets) Close() error { return nil }

// Ticket is a one-time ticket and its lifetime in seconds.
type Ticket struct {
	Ticket    string `json:"ticket"`
	ExpiresIn int    `json:"expires_in"`
}

// Create creates a ticket.
func (s Tickets) Create(ctx context.Context, _ op.None) (Ticket, error) {
	t, ttl, err := s.Issuer.Issue(ctx)
	if err != nil {
		return Ticket{}, op.Errorf(op.Exhausted, "cannot create a ticket: %w", err)
	}
	return Ticket{t, int(ttl.Seconds())}, nil
}

// Check returns the caller. Unauthenticated requests never reach it.
func (s Tickets) Check(ctx context.Context, _ op.None) (map[string]string, error) {
	call := op.CallOf(ctx)
	out := map[string]string{"status": "ok", "subject": call.Subject}
	if call.Role != "" {
		out["role"] = call.Role
	}
	return out, nil
}
