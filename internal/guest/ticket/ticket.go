// Package ticket offers sign-in as operations: one-time tickets for addresses that
// are opened in a browser, and the check that a proxy in front can ask. The
// mechanism is internal/auth; this package owns nothing.
package ticket

import (
	"context"
	"time"

	"github.com/cove-sandbox/cove/internal/op"
)

// Issuer makes a one-time ticket.
type Issuer interface {
	Issue(ctx context.Context) (ticket string, lives time.Duration, err error)
}

// Config of the service.
type Config struct{ Issuer Issuer }

// Service hands out tickets.
type Service struct{ Config }

// New returns the service.
func New(c Config) *Service { return &Service{c} }

// Ops lists what it offers.
func (s *Service) Ops() []op.Op {
	return []op.Op{
		op.New(op.Spec{Name: "auth_create_ticket", Route: "POST /tickets", Tag: "auth", SDK: "auth.create_ticket", Style: op.Resource, NoTool: true, Verb: "auth ticket",
			Doc: "Make a ticket that opens one page as ?ticket=… within its short life. A cookie carries on from there."}, s.Create),
		op.New(op.Spec{Name: "auth_check", Route: "GET /auth", Tag: "auth", SDK: "auth.authenticate", Style: op.Resource, NoTool: true, ReadOnly: true, Verb: "auth check",
			Doc: "Tell whether a request is signed in, and as whom. A proxy in front asks this before it lets a request through."}, s.Check),
	}
}

// Close has nothing to end.
func (s *Service) Close() error { return nil }

// None is an input without fields.
type None struct{}

// Ticket is what opens a page.
type Ticket struct {
	Ticket    string `json:"ticket"`
	ExpiresIn int    `json:"expires_in"`
}

// Create makes a ticket.
func (s *Service) Create(ctx context.Context, _ None) (Ticket, error) {
	t, lives, err := s.Issuer.Issue(ctx)
	if err != nil {
		return Ticket{}, op.Errorf(op.Exhausted, "no ticket can be made now: %w", err)
	}
	return Ticket{t, int(lives.Seconds())}, nil
}

// Check is reached only by those who are signed in.
func (s *Service) Check(ctx context.Context, _ None) (map[string]string, error) {
	return map[string]string{"status": "ok", "subject": op.CallOf(ctx).Subject}, nil
}
