package e2b

import (
	"slices"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/hub/environment"
	"github.com/cove-sandbox/cove/internal/hub/internal/naming"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// Network is the network of a sandbox in the format of E2B.
type Network struct {
	Allow  []string `json:"allowOut" nullable:"true" doc:"Allowed destinations"`
	Deny   []string `json:"denyOut" nullable:"true" doc:"Only 0.0.0.0/0 (all) is supported"`
	Public *bool    `json:"allowPublicTraffic" doc:"false: its ports require the traffic token, even if the hub has public ports"`

	Rules any    `json:"rules,omitempty" doc:"Not supported"`
	Mask  string `json:"maskRequestHost,omitempty" default:"" nullable:"true" doc:"Not supported"`
	Proxy any    `json:"egressProxy,omitempty" doc:"Not supported"`
	DNS   any    `json:"dnsServers,omitempty" doc:"Not supported"`
}

// everything lists the destinations that mean all.
var everything = []string{"0.0.0.0/0", "::/0"}

// policy converts it into our own policy; nil means the default. It rejects rules that our policy
// cannot express.
func (n *Network) policy(internet *bool) (*environment.Policy, error) {
	closed := internet != nil && !*internet
	if n == nil {
		if closed {
			return &environment.Policy{Mode: string(sandbox.NetworkNone)}, nil
		}
		return nil, nil
	}
	for name, given := range map[string]bool{"rules": isGiven(n.Rules), "maskRequestHost": n.Mask != "",
		"egressProxy": isGiven(n.Proxy), "dnsServers": isGiven(n.DNS)} {
		if given {
			return nil, op.Errorf(op.Invalid, "network.%s: this hub does not support it; omit it", name)
		}
	}
	for _, d := range n.Deny {
		if !slices.Contains(everything, d) {
			return nil, op.Errorf(op.Invalid,
				"network.denyOut %.60q: this hub can only deny everything (0.0.0.0/0) and allow exceptions with allowOut", d)
		}
		closed = true
	}
	switch {
	case slices.ContainsFunc(n.Allow, func(a string) bool { return slices.Contains(everything, a) }):
		return &environment.Policy{Mode: string(sandbox.NetworkOpen)}, nil
	case closed && len(n.Allow) > 0:
		return &environment.Policy{Mode: string(sandbox.NetworkAllow), Allow: n.Allow}, nil
	case closed:
		return &environment.Policy{Mode: string(sandbox.NetworkNone)}, nil
	}
	return nil, nil // an open network already includes the allowed destinations
}

func isGiven(v any) bool {
	switch v := v.(type) {
	case nil:
		return false
	case []any:
		return len(v) > 0
	case map[string]any:
		return len(v) > 0
	}
	return true
}

// networkOf returns the network of a sandbox; nil: the default.
func networkOf(spec sandbox.Spec) *Network {
	n := &Network{}
	switch spec.Network.Mode {
	case sandbox.NetworkNone:
		n.Deny = everything[:1]
	case sandbox.NetworkAllow:
		n.Deny, n.Allow = everything[:1], spec.Network.Allow
	}
	if spec.Annotations[naming.AnnotationClosed] != "" {
		n.Public = new(false)
	}
	if n.Deny == nil && n.Public == nil {
		return nil
	}
	return n
}
