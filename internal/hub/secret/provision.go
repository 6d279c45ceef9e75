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

// caFile is where a sandbox finds whom to trust for brokered hosts, caVariables
// are the variables by which programs learn of it.
const caFile = "/var/tmp/cove/ca.pem"

var caVariables = []string{"SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "GIT_SSL_CAINFO", "PIP_CERT",
	"AWS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "DENO_CERT"}

// caBundles is where machines keep the authorities that they trust.
var caBundles = []string{"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"}

// Names returns the secrets that a sandbox was given.
func Names(s sandbox.Spec) []string {
	if list := s.Annotations[naming.AnnotationSecrets]; list != "" {
		return strings.Split(list, ",")
	}
	return nil
}

// Assign notes in a Spec which secrets the sandbox gets, if that is possible.
func (sv *Service) Assign(s *sandbox.Spec, names []string) error {
	delete(s.Env, pool.EnvInit) // the hub's own: a server that nobody provisions would wait forever
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
		return op.Errorf(op.Invalid, "secrets: only a sandbox that runs Cove's own server can be given secrets")
	case len(rules) > 0 && (!able.Egress || sv.Authority == nil):
		return op.Errorf(op.Invalid, "secrets: provider %s has no egress proxy to broker a secret; use mode env or file", able.Provider)
	}
	naming.Annotate(s, naming.AnnotationSecrets, strings.Join(names, ","))
	if s.Env == nil {
		s.Env = map[string]string{}
	}
	s.Env[pool.EnvInit] = "true"
	return nil
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

// settings is what the server of a sandbox is told at each start.
func (sv *Service) settings(s sandbox.Spec) (pool.Init, error) {
	in := pool.Init{Env: map[string]string{}}
	names := sv.existing(s)
	if len(names) == 0 {
		return in, nil
	}
	given, err := sv.Store.Values(holder(s.Owner), names)
	if err != nil {
		return in, opError(err)
	}
	for _, g := range given {
		switch g.Mode {
		case secretstore.Env:
			in.Env[g.Target] = g.Value.Reveal()
		case secretstore.File:
			in.Files = append(in.Files, pool.File{Path: g.Target, Content: []byte(g.Value.Reveal()), Mode: "0600"})
		}
	}
	if len(sv.Credentials(s)) > 0 {
		in.Files = append(in.Files, pool.File{Path: caFile, Content: sv.trusted(), Mode: "0644"})
		for _, name := range caVariables {
			// A bundle that the caller chose stays.
			if _, own := s.Env[name]; !own {
				in.Env[name] = caFile
			}
		}
	}
	return in, nil
}

// trusted returns the authorities that a sandbox trusts: this machine's, and the
// hub for brokered hosts.
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

// Provision tells the server of a sandbox that has just started its secrets.
// Until then it does nothing.
func (sv *Service) Provision(ctx context.Context, sb sandbox.Sandbox) error {
	if !pool.Waits(sb.Spec) || sb.Spec.Annotations[naming.AnnotationSecrets] == "" {
		return nil
	}
	in, err := sv.settings(sb.Spec)
	if err == nil {
		err = pool.BindHTTP(func(ctx context.Context, id string) (sandbox.Endpoint,
			error) {
			return sv.Provider.Endpoint(ctx, id, 0)
		})(ctx, sb, in)
	}
	if err != nil {
		return op.Errorf(op.Unavailable, "provision sandbox %s with its secrets: %w", sb.ID, err)
	}
	return nil
}
