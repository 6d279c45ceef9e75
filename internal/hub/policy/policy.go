// Package policy changes the egress policies of sandboxes while they run.
//
// It owns the operations of the noun egress. The rules are part of the Spec, which the provider stores;
// the sandbox's egress proxy enforces them.
package policy

import (
	"cmp"
	"context"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/hub/environment"
	"github.com/cove-sandbox/cove/internal/hub/internal/fault"
	"github.com/cove-sandbox/cove/internal/hub/secret"
	"github.com/cove-sandbox/cove/internal/network/egress"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// Fleet finds sandboxes and their egress proxies.
type Fleet interface {
	Find(ctx context.Context, name string) (sandbox.Sandbox, error)
	Observe(sandbox.Sandbox)
	// Egress returns the egress proxy of a sandbox; nil if it is not open.
	Egress(sandbox.Sandbox) *egress.Proxy
}

// Config of a Service.
type Config struct {
	Provider sandbox.Provider
	Fleet    Fleet
	Observer Observer
}

// Observer receives events of policies.
type Observer interface {
	// Announced is called for an event of a sandbox.
	Announced(kind string, sb sandbox.Sandbox, message string)
	// Acted is called after a change that no caller requested.
	Acted(what string, sb sandbox.Sandbox)
}

// Service implements the operations.
type Service struct{ Config }

// New returns a service.
func New(cfg Config) *Service { return &Service{cfg} }

const one = "/api/v1/sandbox/{name}/egress"

// Ops lists the operations.
func (s *Service) Ops() []op.Op {
	return []op.Op{
		op.New(op.Spec{Name: "egress_allow", Route: "POST " + one + "/allow", Tag: "egress", Verb: "egress allow", NoTool: true,
			Doc: "Add rules that allow destinations to the egress policy of a sandbox. They take effect immediately, " +
				"also for connections that wait for approval."}, s.Allow),
		op.New(op.Spec{Name: "egress_ask", Route: "POST " + one + "/ask", Tag: "egress", Verb: "egress ask", NoTool: true,
			Doc: "Set the egress policy of a sandbox to ask: the first connection to a host without a rule waits a minute " +
				"for approval. Its rules stay."}, s.Ask),
		op.New(op.Spec{Name: "egress_pending", Access: op.AccessRead, Route: "GET " + one + "/pending", Tag: "egress",
			Verb: "egress pending", ReadOnly: true, NoTool: true,
			Columns: []string{"host", "port", "program", "since", "until", "waiting"},
			Doc:     "List the hosts to which connections of a sandbox wait for approval, the oldest first."}, s.Pending),
		op.New(op.Spec{Name: "egress_deny", Route: "POST " + one + "/deny", Tag: "egress", Verb: "egress deny", NoTool: true,
			Doc: "Deny connections of a sandbox that wait for approval, and further ones to the same hosts for ten minutes."}, s.Deny),
		op.New(op.Spec{Name: "egress_learn", Route: "POST " + one + "/learn", Tag: "egress", Verb: "egress learn", NoTool: true,
			Doc: "Record the destinations that a sandbox uses, to propose a minimal list of rules. Its policy stays in force, " +
				"unless allow_all is set. Replaces an earlier recording."}, s.Learn),
		op.New(op.Spec{Name: "egress_learned", Access: op.AccessRead, Route: "GET " + one + "/learn", Tag: "egress",
			Verb: "egress learned", ReadOnly: true, NoTool: true,
			Doc: "Show the recorded destinations of a sandbox, and the proposed rules."}, s.Learned),
		op.New(op.Spec{Name: "egress_finish", Route: "DELETE " + one + "/learn", Tag: "egress", Verb: "egress finish", NoTool: true,
			Doc: "End the recording of a sandbox. Returns the proposed rules, and makes them its policy with apply=true."}, s.Finish),
	}
}

// maxRules is the maximum number of rules of one sandbox to which Allow adds.
const maxRules = 256

// AllowIn is a list of rules.
type AllowIn struct {
	Name  string   `path:"name" doc:"Name of the sandbox"`
	Rules []string `json:"rules" minItems:"1" maxItems:"100" doc:"Names, *.names, addresses, ranges; :port; GET name/path/*"`
	Once  bool     `json:"once" default:"false" doc:"Mode ask: add no rule, and allow new connections to these hosts for five minutes"`
}

// Allow adds rules.
func (s *Service) Allow(ctx context.Context, in AllowIn) (environment.Policy, error) {
	if in.Once {
		return s.allowOnce(ctx, in)
	}
	return s.change(ctx, in.Name, func(n *sandbox.Network) error { return addRules(n, in.Rules) })
}

// addRules appends rules that allow.
func addRules(n *sandbox.Network, rules []string) error {
	if n.Mode == sandbox.NetworkOpen {
		return op.Errorf(op.Conflict, "its egress policy is open, which allows all public addresses; rules require "+
			"cove network set NAME --mode allow")
	}
	if n.Mode != sandbox.NetworkAllow && n.Mode != sandbox.NetworkAsk {
		*n = sandbox.Network{Mode: sandbox.NetworkAllow}
	}
	for _, rule := range rules {
		if strings.HasPrefix(rule, "!") {
			return op.Errorf(op.Invalid, "rule %.80q denies; set it with cove network set NAME --allow", rule)
		}
		if !slices.Contains(n.Allow, rule) {
			n.Allow = append(n.Allow, rule)
		}
	}
	if len(n.Allow) > maxRules {
		return op.Errorf(op.Exhausted, "limit of %d rules reached; replace the rules with cove network set NAME", maxRules)
	}
	parsed, err := egress.Parse(*n)
	if err != nil {
		return op.Errorf(op.Invalid, "%w", err)
	}
	// An earlier rule that denies takes precedence, so the new one would have no effect.
	for _, rule := range rules {
		if host, port, ok := target(rule); ok {
			if err := parsed.Allow(host, port); err != nil {
				return op.Errorf(op.Conflict, "rule %.80q has no effect: %w", rule, err)
			}
		}
	}
	return nil
}

// target returns the host and port that a rule is for; false if it is for several hosts.
func target(rule string) (host string, port int, ok bool) {
	host, text, err := net.SplitHostPort(rule)
	if err != nil {
		host, text = strings.Trim(rule, "[]"), "443"
	}
	port, err = strconv.Atoi(text)
	if ip, e := netip.ParseAddr(host); e == nil {
		return ip.Unmap().String(), port, err == nil
	}
	host, e := egress.CleanName(host)
	return host, port, err == nil && e == nil
}

// change changes the policy of a sandbox and applies it immediately.
func (s *Service) change(ctx context.Context, name string, change func(*sandbox.Network) error) (environment.Policy, error) {
	sb, err := s.Fleet.Find(ctx, name)
	if err != nil {
		return environment.Policy{}, err
	}
	if able := s.Provider.Abilities(); !able.Egress {
		return environment.Policy{}, op.Errorf(op.Invalid, "provider %s cannot restrict egress", able.Provider)
	}
	sb, err = s.Provider.Update(ctx, sb.ID, func(spec *sandbox.Spec) error {
		return cmp.Or(change(&spec.Network), secret.CheckReadable(*spec))
	})
	if err != nil {
		return environment.Policy{}, fault.FromProvider(name, err)
	}
	s.Fleet.Observe(sb)
	return environment.Policy{Mode: string(sb.Spec.Network.Mode), Allow: sb.Spec.Network.Allow}, nil
}
