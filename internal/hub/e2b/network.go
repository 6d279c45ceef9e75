package e2b

import (
	"cmp"
	"encoding/json"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/hub/environment"
	"github.com/cove-sandbox/cove/internal/hub/internal/naming"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// Network is the network of a sandbox in the format of E2B.
type Network struct {
	Allow  []string `json:"allowOut" nullable:"true" doc:"Allowed destinations"`
	Deny   []string `json:"denyOut" nullable:"true" doc:"Denied addresses and ranges; 0.0.0.0/0 means all. allowOut takes precedence"`
	Public *bool    `json:"allowPublicTraffic" doc:"false: its ports require the traffic token, even if the hub has public ports"`

	Rules json.RawMessage `json:"rules,omitempty" doc:"Headers that requests to a host get, which programs inside do not see"`
	Mask  string          `json:"maskRequestHost,omitempty" default:"" nullable:"true" doc:"Host header for ports; ${PORT} is the port"`
	Proxy json.RawMessage `json:"egressProxy,omitempty" doc:"Not supported"`

	DNS []string `json:"dnsServers,omitempty" nullable:"true" doc:"IPv4 addresses that are allowed in addition to allowOut"`
}

// everything lists the destinations that mean all.
var everything = []string{"0.0.0.0/0", "::/0"}

// deny begins a rule that denies. The first matching rule decides, and others end a list that denies only some addresses.
const deny = "!"

var others = append([]string{"*"}, everything...)

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
	if isGiven(n.Proxy) {
		return nil, op.Errorf(op.Invalid, "network.egressProxy: this hub connects to destinations itself; omit it")
	}
	servers, err := n.servers()
	if err := cmp.Or(err, n.checkMask()); err != nil {
		return nil, err
	}
	var denied []string
	for _, d := range n.Deny {
		_, err := netip.ParsePrefix(d)
		_, err1 := netip.ParseAddr(d)
		switch {
		case slices.Contains(everything, d):
			closed = true
		case err != nil && err1 != nil:
			return nil, op.Errorf(op.Invalid, "network.denyOut %.60q: use an address or a range such as 192.0.2.0/24", d)
		default:
			denied = append(denied, deny+d)
		}
	}
	switch {
	case slices.ContainsFunc(n.Allow, func(a string) bool { return slices.Contains(everything, a) }):
		return &environment.Policy{Mode: string(sandbox.NetworkOpen)}, nil
	case closed && len(n.Allow) > 0:
		return &environment.Policy{Mode: string(sandbox.NetworkAllow), Allow: slices.Concat(n.Allow, servers)}, nil
	case closed:
		return &environment.Policy{Mode: string(sandbox.NetworkNone)}, nil
	}
	if len(denied) > 0 {
		return &environment.Policy{Mode: string(sandbox.NetworkAllow), Allow: slices.Concat(n.Allow, denied, others)}, nil
	}
	return nil, nil // an open network already includes the allowed destinations
}

// maxServers is the maximum number of name servers.
const maxServers = 10

// servers returns the addresses of name servers that are allowed because allowOut contains a name, if it does not
// contain them itself. The proxy resolves names, so programs need none.
func (n *Network) servers() (out []string, err error) {
	if len(n.DNS) > maxServers {
		return nil, op.Errorf(op.Invalid, "network.dnsServers: %d addresses; use at most %d", len(n.DNS), maxServers)
	}
	for _, s := range n.DNS {
		if ip, err := netip.ParseAddr(s); err != nil || !ip.Is4() {
			return nil, op.Errorf(op.Invalid, "network.dnsServers %.60q: use an IPv4 address", s)
		}
		if !slices.Contains(n.Allow, s) && !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	named := slices.ContainsFunc(n.Allow, func(a string) bool {
		_, err := netip.ParsePrefix(a)
		_, err1 := netip.ParseAddr(a)
		return err != nil && err1 != nil
	})
	if !named {
		return nil, nil
	}
	return out, nil
}

// portVariable is replaced with the port in a mask.
const portVariable = "${PORT}"

// checkMask checks the Host header for requests to ports.
func (n *Network) checkMask() error {
	host := strings.ReplaceAll(n.Mask, portVariable, "65535")
	name, port, hasPort := strings.Cut(host, ":")
	_, err := strconv.ParseUint(port, 10, 16)
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_"
	if n.Mask != "" && (name == "" || len(name) > maxHost || strings.Trim(name, letters) != "" || hasPort && err != nil) {
		return op.Errorf(op.Invalid, "network.maskRequestHost %.60q: use a host name such as app.example, or app.example:${PORT}", n.Mask)
	}
	return nil
}

// maxHost is the maximum length of a host name.
const maxHost = 253

// isGiven reports whether a field has a value.
func isGiven(v json.RawMessage) bool {
	return !slices.Contains([]string{"", "null", "{}", "[]"}, string(v))
}

// networkOf returns the network of a sandbox; nil: the default.
func networkOf(spec sandbox.Spec) *Network {
	n := &Network{Mask: spec.Annotations[naming.AnnotationMask]}
	switch spec.Network.Mode {
	case sandbox.NetworkNone:
		n.Deny = everything[:1]
	case sandbox.NetworkAllow:
		n.Deny, n.Allow = everything[:1], spec.Network.Allow
		if isOpen(spec.Network) {
			n.Deny, n.Allow = nil, nil
			for _, rule := range spec.Network.Allow[:len(spec.Network.Allow)-len(others)] {
				if denied, ok := strings.CutPrefix(rule, deny); ok {
					n.Deny = append(n.Deny, denied)
				} else {
					n.Allow = append(n.Allow, rule)
				}
			}
		}
	}
	if spec.Annotations[naming.AnnotationClosed] != "" {
		n.Public = new(false)
	}
	if n.Deny == nil && n.Public == nil && n.Mask == "" {
		return nil
	}
	return n
}

// isOpen reports whether programs can reach all destinations, except for some.
func isOpen(n sandbox.Network) bool {
	return n.Mode == sandbox.NetworkOpen || n.Mode == sandbox.NetworkAllow && len(n.Allow) >= len(others) &&
		slices.Equal(n.Allow[len(n.Allow)-len(others):], others)
}
