package policy

import (
	"context"
	"net"
	"slices"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/hub/environment"
	"github.com/cove-sandbox/cove/internal/network/egress"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// Ask sets the mode ask.
func (s *Service) Ask(ctx context.Context, in NameIn) (environment.Policy, error) {
	return s.change(ctx, in.Name, func(n *sandbox.Network) error {
		n.Mode = sandbox.NetworkAsk
		return nil
	})
}

// Waiting is a host that waits for approval.
type Waiting struct {
	Host    string    `json:"host" doc:"Name in its ASCII form (xn-- for others), or address"`
	Port    int       `json:"port"`
	Program string    `json:"program" doc:"First program, by the name that it sent; it can be false"`
	Since   time.Time `json:"since"`
	Until   time.Time `json:"until" doc:"When it is denied"`
	Waiting int       `json:"waiting" doc:"Connections"`
}

// Pending lists what waits for approval.
func (s *Service) Pending(ctx context.Context, in NameIn) ([]Waiting, error) {
	_, p, err := s.proxy(ctx, in.Name)
	if err != nil {
		return nil, err
	}
	out := []Waiting{}
	for _, q := range p.Approvals.List() {
		out = append(out, Waiting{q.Host, q.Port, q.Program, q.Since.UTC(), q.Until.UTC(), q.Waiting})
	}
	return out, nil
}

// allowOnce approves hosts without a rule.
func (s *Service) allowOnce(ctx context.Context, in AllowIn) (environment.Policy, error) {
	if slices.Contains(in.Rules, "*") {
		return environment.Policy{}, op.Errorf(op.Invalid, "rule %q: name the hosts to approve, because programs choose what waits", "*")
	}
	sb, err := s.answer(ctx, in.Name, in.Rules, func(p *egress.Proxy, host string, port int) error {
		_, err := p.Approvals.Approve(host, port)
		return err
	})
	return environment.Policy{Mode: string(sb.Spec.Network.Mode), Allow: sb.Spec.Network.Allow}, err
}

// DenyIn is a list of hosts.
type DenyIn struct {
	Name  string   `path:"name" doc:"Name of the sandbox"`
	Hosts []string `json:"hosts" minItems:"1" maxItems:"100" doc:"Hosts that wait, with or without :port; * means all"`
}

// Deny denies what waits for approval.
func (s *Service) Deny(ctx context.Context, in DenyIn) (environment.Policy, error) {
	sb, err := s.answer(ctx, in.Name, in.Hosts, func(p *egress.Proxy, host string, port int) error {
		return p.Approvals.Reject(host, port)
	})
	return environment.Policy{Mode: string(sb.Spec.Network.Mode), Allow: sb.Spec.Network.Allow}, err
}

// answer answers for hosts. A host without a port means the ports that wait, or those of HTTP.
func (s *Service) answer(ctx context.Context, name string, hosts []string,
	answer func(p *egress.Proxy, host string, port int) error) (sandbox.Sandbox, error) {
	sb, p, err := s.proxy(ctx, name)
	if err != nil {
		return sb, err
	}
	if sb.Spec.Network.Mode != sandbox.NetworkAsk {
		return sb, op.Errorf(op.Conflict, "the egress policy of sandbox %q is %s, and only the mode ask has approvals; "+
			"set it with cove egress ask", name, sb.Spec.Network.Mode)
	}
	for _, text := range hosts {
		host, port, single := target(text)
		if !single && text != "*" {
			return sb, op.Errorf(op.Invalid, "host %.80q: use a name or an address, with or without :port", text)
		}
		if _, _, err := net.SplitHostPort(text); err == nil {
			if err := answer(p, host, port); err != nil {
				return sb, op.Errorf(op.Exhausted, "%w", err)
			}
			continue
		}
		var ports []egress.Pending
		for _, q := range p.Approvals.List() {
			if text == "*" || q.Host == host {
				ports = append(ports, q)
			}
		}
		if len(ports) == 0 && text != "*" {
			ports = []egress.Pending{{Host: host, Port: 443}, {Host: host, Port: 80}}
		}
		for _, q := range ports {
			if err := answer(p, q.Host, q.Port); err != nil {
				return sb, op.Errorf(op.Exhausted, "%w", err)
			}
		}
	}
	return sb, nil
}
