package secret

import (
	"bytes"
	"context"
	"os"
	"slices"
	"strings"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/hub/internal/naming"
	"github.com/cove-sandbox/cove/internal/hub/internal/pool"
	"github.com/cove-sandbox/cove/internal/hub/internal/secretstore"
	"github.com/cove-sandbox/cove/internal/network/egress"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// caFile contains the certificate authorities that a sandbox trusts for brokered hosts; caVariables
// point programs to it.
const caFile = "/var/tmp/cove/ca.pem"

var caVariables = []string{"SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "GIT_SSL_CAINFO", "PIP_CERT",
	"AWS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "DENO_CERT"}

// caBundles are the usual paths of a machine's certificate authorities.
var caBundles = []string{"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"}

// Names returns the names of the secrets that a sandbox uses.
func Names(s sandbox.Spec) []string {
	if list := s.Annotations[naming.AnnotationSecrets]; list != "" {
		return strings.Split(list, ",")
	}
	return nil
}

// Assign records in a Spec the secrets that the sandbox uses, or returns why it cannot.
func (sv *Service) Assign(s *sandbox.Spec, names []string) error {
	delete(s.Env, pool.EnvInit) // reserved for the hub: the server would wait forever
	delete(s.Annotations, naming.AnnotationTrust)
	if egress.ReadsRequests(s.Network) {
		if err := sv.trust(s, "network rules with a method or path"); err != nil {
			return err
		}
	}
	if len(names) == 0 {
		return nil
	}
	store, err := sv.store()
	if err != nil {
		return err
	}
	names = slices.Compact(slices.Sorted(slices.Values(names)))
	if _, err := store.Values(holder(s.Owner), names); err != nil {
		return opError(err)
	}
	rules, err := store.Rules(holder(s.Owner), names)
	if err != nil {
		return opError(err)
	}
	able := sv.Provider.Abilities()
	switch {
	case s.Server.Port != 0:
		return op.Errorf(op.Invalid, "secrets: only sandboxes with Cove's own server support secrets")
	case len(rules) > 0 && (!able.Egress || sv.Authority == nil):
		return op.Errorf(op.Invalid, "secrets: provider %s has no egress proxy to broker a secret; use mode env or file", able.Provider)
	case len(rules) > 0:
		naming.Annotate(s, naming.AnnotationTrust, "true")
	}
	naming.Annotate(s, naming.AnnotationSecrets, strings.Join(names, ","))
	wait(s)
	return nil
}

// trust makes the programs of a sandbox trust the hub's authority, so that its connections can be read.
func (sv *Service) trust(s *sandbox.Spec, what string) error {
	able := sv.Provider.Abilities()
	switch {
	case s.Server.Port != 0:
		return op.Errorf(op.Invalid, "%s: only programs of sandboxes with Cove's own server trust the hub, which reads requests", what)
	case !able.Egress || sv.Authority == nil:
		return op.Errorf(op.Invalid, "%s: this hub or provider %s cannot read requests; use rules for the whole host", what, able.Provider)
	}
	naming.Annotate(s, naming.AnnotationTrust, "true")
	wait(s)
	return nil
}

// CheckReadable returns an error if a sandbox has rules for requests that the hub cannot read.
func CheckReadable(s sandbox.Spec) error {
	if s.Annotations[naming.AnnotationTrust] == "" && egress.ReadsRequests(s.Network) {
		return op.Errorf(op.Conflict, "rules with a method or path: the programs of sandbox %q do not trust the hub, which cannot read "+
			"their requests; create a sandbox with such a rule, or use rules for the whole host", s.Name)
	}
	return nil
}

// wait makes the server of a sandbox wait for its settings at each start.
func wait(s *sandbox.Spec) {
	if s.Env == nil {
		s.Env = map[string]string{}
	}
	s.Env[pool.EnvInit] = "true"
}

// HideEnv removes the hub's own variable from an environment that is shown.
func HideEnv(env map[string]string) { delete(env, pool.EnvInit) }

// existing returns the names of a sandbox's secrets that still exist.
func (sv *Service) existing(s sandbox.Spec) []string {
	if sv.Store == nil {
		return nil
	}
	names := Names(s)
	if len(names) == 0 {
		return nil
	}
	stored := sv.Store.List(holder(s.Owner))
	return slices.DeleteFunc(names, func(name string) bool {
		return !slices.ContainsFunc(stored, func(i secretstore.Info) bool { return i.Name == name })
	})
}

// Credentials are the headers that a sandbox's egress proxy adds.
func (sv *Service) Credentials(s sandbox.Spec) []egress.Credential {
	names := sv.existing(s)
	if len(names) == 0 || sv.Authority == nil {
		return nil
	}
	rules, err := sv.Store.Rules(holder(s.Owner), names)
	if err != nil {
		sv.Log.Error("cannot broker secrets", "sandbox", s.Name, "error", err)
		return nil
	}
	return rules
}

// settings returns what the server of a sandbox receives at each start.
func (sv *Service) settings(s sandbox.Spec) (pool.Init, error) {
	in := pool.Init{Env: map[string]string{}}
	names := sv.existing(s)
	var given []secretstore.Given
	if len(names) > 0 {
		var err error
		if given, err = sv.Store.Values(holder(s.Owner), names); err != nil {
			return in, opError(err)
		}
	}
	for _, g := range given {
		switch g.Mode {
		case secretstore.Env:
			in.Env[g.Target] = g.Value.Reveal()
		case secretstore.File:
			in.Files = append(in.Files, pool.File{Path: g.Target, Content: []byte(g.Value.Reveal()), Mode: "0600"})
		}
	}
	if sv.Authority != nil && (s.Annotations[naming.AnnotationTrust] != "" || len(sv.Credentials(s)) > 0) {
		in.Files = append(in.Files, pool.File{Path: caFile, Content: sv.trusted(), Mode: "0644"})
		for _, name := range caVariables {
			// A value of the caller takes precedence.
			if _, own := s.Env[name]; !own {
				in.Env[name] = caFile
			}
		}
	}
	return in, nil
}

// trusted returns the authorities that a sandbox trusts: those of this machine, and the hub's for
// brokered hosts.
func (sv *Service) trusted() []byte {
	var all bytes.Buffer
	for _, path := range caBundles {
		if b, err := os.ReadFile(path); err == nil {
			all.Write(b)
			break
		}
	}
	all.WriteByte('\n')
	all.Write(sv.Authority.PEM())
	return all.Bytes()
}

// Provision sends the secrets to the server of a sandbox that has just started. The server waits for
// them.
func (sv *Service) Provision(ctx context.Context, sb sandbox.Sandbox) error {
	if !pool.Waits(sb.Spec) || sb.Spec.Annotations[naming.AnnotationSecrets] == "" && sb.Spec.Annotations[naming.AnnotationTrust] == "" {
		return nil
	}
	in, err := sv.settings(sb.Spec)
	if err == nil {
		err = pool.BindHTTP(func(ctx context.Context, id string) (sandbox.Endpoint, error) {
			return sv.Provider.Endpoint(ctx, id, 0)
		})(ctx, sb, in)
	}
	if err != nil {
		return op.Errorf(op.Unavailable, "send secrets to sandbox %s: %w", sb.ID, err)
	}
	return nil
}
