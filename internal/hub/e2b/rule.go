package e2b

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/hub/internal/caller"
	"github.com/cove-sandbox/cove/internal/hub/internal/fault"
	"github.com/cove-sandbox/cove/internal/hub/internal/naming"
	"github.com/cove-sandbox/cove/internal/hub/internal/token"
	"github.com/cove-sandbox/cove/internal/hub/secret"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// rule changes requests to a host.
type rule struct {
	Transform struct {
		Headers map[string]string `json:"headers"`
	} `json:"transform"`
}

// field is a header of the requests to a host.
type field struct{ host, header string }

// identityToken begins a placeholder for a token of E2B's identity service.
const identityToken = "${e2b."

// headers returns the headers that requests get. The last rule for a header takes precedence.
func (n *Network) headers() (map[field]string, error) {
	if n == nil || !isGiven(n.Rules) {
		return nil, nil
	}
	var rules map[string][]rule
	from := json.NewDecoder(bytes.NewReader(n.Rules))
	from.DisallowUnknownFields()
	if err := from.Decode(&rules); err != nil {
		return nil, op.Errorf(op.Invalid, `network.rules: use {"HOST":[{"transform":{"headers":{"NAME":"VALUE"}}}]}`)
	}
	all := map[field]string{}
	for host, list := range rules {
		for _, r := range list {
			for name, value := range r.Transform.Headers {
				if strings.Contains(value, identityToken) {
					return nil, op.Errorf(op.Invalid, "network.rules: header %.60q for %.60q: this hub issues no identity tokens; "+
						"use a value", name, host)
				}
				all[field{strings.ToLower(host), http.CanonicalHeaderKey(name)}] = value
			}
		}
	}
	return all, nil
}

// rulePrefix begins the names of the brokered secrets that are headers of rules. Sandboxes of an owner with the same rule share
// the secret.
const (
	rulePrefix = "e2b-rule-"
	ruleDigits = 32
)

// rulebook stores the rules of sandboxes.
type rulebook struct {
	*Config
	mu   sync.Mutex
	held map[string]int // by name, the number of calls in progress that need the secret
}

// hold stores the headers of a network's rules as brokered secrets. The caller must release them when a sandbox uses them,
// or if it fails.
func (b *rulebook) hold(ctx context.Context, n *Network) (names []string, err error) {
	all, err := n.headers()
	if err != nil || len(all) == 0 {
		return nil, err
	}
	defer keepTarget(ctx)()
	b.mu.Lock()
	defer b.mu.Unlock()
	for at, value := range all {
		name := b.name(at, value)
		if _, err = b.Secrets.Set(ctx, secret.SetSecretIn{Name: name, Value: value, Mode: "broker", Hosts: []string{at.host},
			Header: at.header, Format: "%s", Insecure: true}); err != nil {
			break
		}
		names = append(names, name)
		if b.held == nil {
			b.held = map[string]int{}
		}
		b.held[name]++
	}
	if err != nil {
		b.releaseLocked(ctx, names)
		if e, ok := op.AsError(err); ok {
			err = op.Errorf(e.Code, "network.rules: %w", err)
		}
		return nil, err
	}
	return names, nil
}

// keepTarget returns a function that restores the target of a call for the audit log: it is the sandbox, not a secret.
func keepTarget(ctx context.Context) func() {
	call := op.CallOf(ctx)
	name := call.TargetName
	return func() { call.TargetName = name }
}

// name returns the name of the secret for a header. Users can list names, and must not be able to guess values by them.
func (b *rulebook) name(at field, value string) string {
	sum := sha256.Sum256([]byte(at.host + "\x00" + at.header + "\x00" + value))
	signed := b.Tokens.Traffic(fmt.Sprintf("rule %x", sum), token.Bearer{})
	return rulePrefix + signed[len(signed)-ruleDigits:]
}

// release deletes the secrets of rules that no sandbox of the caller uses.
func (b *rulebook) release(ctx context.Context, names []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.releaseLocked(ctx, names)
}

func (b *rulebook) releaseLocked(ctx context.Context, names []string) {
	ctx = context.WithoutCancel(ctx)
	defer keepTarget(ctx)()
	for _, name := range names {
		if b.held[name]--; b.held[name] <= 0 {
			delete(b.held, name)
		}
	}
	stored, err := b.Secrets.List(ctx, op.None{})
	stored = slices.DeleteFunc(stored, func(x secret.SecretOut) bool { return !isRule(x.Name) || b.held[x.Name] > 0 })
	if err != nil || len(stored) == 0 {
		return // a hub without secrets has no rules either
	}
	boxes, err := b.Provider.List(ctx, sandbox.Filter{Owner: caller.Owner(ctx)})
	if err != nil {
		return // the next call deletes them
	}
	used := map[string]bool{}
	for _, sb := range boxes {
		for _, name := range secret.Names(sb.Spec) {
			used[name] = true
		}
	}
	for _, x := range stored {
		if !used[x.Name] {
			_, _ = b.Secrets.Delete(ctx, secret.DeleteSecretIn{Name: x.Name}) // the next call retries
		}
	}
}

func isRule(name string) bool {
	digits, ok := strings.CutPrefix(name, rulePrefix)
	return ok && len(digits) == ruleDigits && strings.Trim(digits, "0123456789abcdef") == ""
}

// hidden replaces values, which are never shown.
const hidden = "[redacted]"

// of returns the rules of a sandbox without the values; nil: none.
func (b *rulebook) of(ctx context.Context, spec sandbox.Spec) json.RawMessage {
	names := slices.DeleteFunc(secret.Names(spec), func(name string) bool { return !isRule(name) })
	if len(names) == 0 {
		return nil
	}
	stored, err := b.Secrets.List(ctx, op.None{})
	if err != nil {
		return nil
	}
	all := map[string][]rule{}
	for _, x := range stored {
		if !slices.Contains(names, x.Name) {
			continue
		}
		for _, host := range x.Hosts {
			if all[host] == nil {
				all[host] = make([]rule, 1)
				all[host][0].Transform.Headers = map[string]string{}
			}
			all[host][0].Transform.Headers[x.Header] = hidden
		}
	}
	text, err := json.Marshal(all)
	if err != nil {
		return nil
	}
	return text
}

// checkRules returns an error if a sandbox cannot get rules while it exists.
func checkRules(sb sandbox.Sandbox, names []string) error {
	if len(names) > 0 && sb.Spec.Annotations[naming.AnnotationTrust] == "" {
		return op.Errorf(op.Conflict, "network.rules: the programs of sandbox %q do not trust the hub, which cannot change their "+
			"requests; create a sandbox with a rule", sb.Spec.Name)
	}
	return nil
}

// replace replaces the rules of a sandbox.
func (b *rulebook) replace(ctx context.Context, sb sandbox.Sandbox, names []string) error {
	old := secret.Names(sb.Spec)
	if len(names) == 0 && !slices.ContainsFunc(old, isRule) {
		return nil
	}
	sb, err := b.Provider.Update(ctx, sb.ID, func(spec *sandbox.Spec) error {
		all := slices.Concat(names, slices.DeleteFunc(secret.Names(*spec), isRule))
		delete(spec.Annotations, naming.AnnotationSecrets)
		if len(all) > 0 {
			slices.Sort(all)
			naming.Annotate(spec, naming.AnnotationSecrets, strings.Join(all, ","))
		}
		return nil
	})
	if err != nil {
		return fault.FromProvider(sb.Spec.Name, err)
	}
	b.Fleet.Observe(sb)
	if p := b.Fleet.Egress(sb); p != nil {
		return p.SetCredentials(b.Secrets.Credentials(sb.Spec))
	}
	return nil
}
