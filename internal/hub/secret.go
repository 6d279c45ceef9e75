package hub

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/cove-sandbox/cove/internal/egress"
	"github.com/cove-sandbox/cove/internal/op"
	"github.com/cove-sandbox/cove/internal/pool"
	"github.com/cove-sandbox/cove/internal/sandbox"
	"github.com/cove-sandbox/cove/internal/secret"
)

// noteSecrets has the names of the secrets that a sandbox was given. Their
// values are in no Spec: they are told to the server inside at every start, and
// to its way out.
const noteSecrets = "cove/secrets"

// Where a sandbox finds whom to trust for brokered hosts, and the variables by
// which programs learn of it.
const caInside = "/var/tmp/cove/ca.pem"

var caVariables = []string{"SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "GIT_SSL_CAINFO", "PIP_CERT", "AWS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "DENO_CERT"}

// caBundles is where machines keep the authorities that they trust.
var caBundles = []string{"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"}

// secretOps keep what tenants entrust to the hub.
func (h *Hub) secretOps() []op.Op {
	return []op.Op{
		op.New(op.Spec{Name: "secret_set", Route: "PUT /api/v1/secret/{name}", Tag: "secret", NoVerb: true,
			Doc: "Keep a secret, or replace one. It can never be read back. A sandbox gets it at its creation, by name: as a variable, as a file, or brokered: " +
				"then its way out adds the header to requests to the named hosts, and the sandbox never sees the value."}, h.SetSecret),
		op.New(op.Spec{Name: "secret_list", Route: "GET /api/v1/secret", Tag: "secret", ReadOnly: true,
			Columns: []string{"name", "mode", "target", "hosts", "updated"},
			Doc:     "List secrets, without their values."}, h.ListSecrets),
		op.New(op.Spec{Name: "secret_delete", Route: "DELETE /api/v1/secret/{name}", Tag: "secret", Verb: "secret rm", Destructive: true,
			Doc: "Delete a secret. Brokered it is gone at once; what a sandbox was given as a variable or file stays there."}, h.DeleteSecret),
	}
}

// SetSecretIn is a secret.
type SetSecretIn struct {
	Name     string   `path:"name" doc:"Its name: letters, digits, _, - and ."`
	Value    string   `json:"value" minLength:"1" doc:"The value"`
	Mode     string   `json:"mode" default:"env" enum:"env,file,broker" doc:"How a sandbox uses it"`
	Target   string   `json:"target" default:"" doc:"The variable, by default the name; or the absolute path of the file"`
	Hosts    []string `json:"hosts" nullable:"true" doc:"Brokered: names of hosts, *.name for all below, :port behind it for another port"`
	Header   string   `json:"header" default:"" doc:"Brokered: the header; Authorization when missing"`
	Format   string   `json:"format" default:"" doc:"Brokered: the header's value, with %s where the secret goes; Bearer %s for Authorization when missing"`
	Insecure bool     `json:"insecure" default:"false" doc:"Brokered: over plain HTTP too"`
}

// SecretOut is what can be read back.
type SecretOut struct {
	Name     string    `json:"name"`
	Mode     string    `json:"mode"`
	Target   string    `json:"target,omitempty"`
	Hosts    []string  `json:"hosts"`
	Header   string    `json:"header,omitempty"`
	Format   string    `json:"format,omitempty"`
	Insecure bool      `json:"insecure"`
	Created  time.Time `json:"created"`
	Updated  time.Time `json:"updated"`
}

func secretOut(i secret.Info) SecretOut {
	return SecretOut{i.Name, string(i.Mode), i.Target, i.Hosts, i.Header, i.Format, i.Insecure, i.Created, i.Updated}
}

func (h *Hub) secrets() (*secret.Store, error) {
	if h.cfg.Secrets == nil {
		return nil, op.Errorf(op.Invalid, "this hub keeps no secrets")
	}
	return h.cfg.Secrets, nil
}

// holder is whose secrets an owner's are. The one owner of a hub without tenants
// has no name; no tenant's begins like this.
func holder(owner string) string {
	if owner == "" {
		return "-owner"
	}
	return owner
}

func secretError(err error) error {
	switch {
	case errors.Is(err, secret.ErrInvalid):
		return op.Errorf(op.Invalid, "%w", err)
	case errors.Is(err, secret.ErrNotFound):
		return op.Errorf(op.NotFound, "%w", err)
	case errors.Is(err, secret.ErrTooMany):
		return op.Errorf(op.Exhausted, "%w", err)
	}
	return err
}

// SetSecret keeps one.
func (h *Hub) SetSecret(ctx context.Context, in SetSecretIn) (SecretOut, error) {
	s, err := h.secrets()
	if err != nil {
		return SecretOut{}, err
	}
	op.CallOf(ctx).TargetName = clip(in.Name)
	info, err := s.Set(holder(owner(ctx)), secret.Secret{
		Name: in.Name, Value: secret.New(in.Value), Mode: secret.Mode(in.Mode), Target: in.Target,
		Hosts: in.Hosts, Header: in.Header, Format: in.Format, Insecure: in.Insecure,
	})
	if err != nil {
		return SecretOut{}, secretError(err)
	}
	h.rebroker(owner(ctx))
	return secretOut(info), nil
}

// ListSecrets shows what can be shown.
func (h *Hub) ListSecrets(ctx context.Context, _ None) ([]SecretOut, error) {
	s, err := h.secrets()
	if err != nil {
		return nil, err
	}
	out := []SecretOut{}
	for _, i := range s.List(holder(owner(ctx))) {
		out = append(out, secretOut(i))
	}
	return out, nil
}

// DeleteSecret removes one.
func (h *Hub) DeleteSecret(ctx context.Context, in NameIn) (string, error) {
	s, err := h.secrets()
	if err != nil {
		return "", err
	}
	op.CallOf(ctx).TargetName = clip(in.Name)
	if err := s.Delete(holder(owner(ctx)), in.Name); err != nil {
		return "", secretError(err)
	}
	h.rebroker(owner(ctx))
	return "Secret " + in.Name + " deleted successfully", nil
}

// secretNames are those that a sandbox was given.
func secretNames(s sandbox.Spec) []string {
	if list := s.Annotations[noteSecrets]; list != "" {
		return strings.Split(list, ",")
	}
	return nil
}

// entrust notes in a Spec which secrets the sandbox gets, if that is possible.
func (h *Hub) entrust(s *sandbox.Spec, names []string) error {
	if len(names) == 0 {
		return nil
	}
	store, err := h.secrets()
	if err != nil {
		return err
	}
	names = slices.Compact(slices.Sorted(slices.Values(names)))
	if _, err := store.Values(holder(s.Owner), names); err != nil {
		return secretError(err)
	}
	rules, err := store.Rules(holder(s.Owner), names)
	if err != nil {
		return secretError(err)
	}
	able := h.cfg.Provider.Abilities()
	switch {
	case s.Server.Port != 0:
		return op.Errorf(op.Invalid, "secrets: only a sandbox with this project's own server can be given secrets")
	case len(rules) > 0 && (!able.Egress || h.cfg.Authority == nil):
		return op.Errorf(op.Invalid, "secrets: provider %s has no way out that could add a brokered secret; give it as env or file", able.Provider)
	}
	note(s, noteSecrets, strings.Join(names, ","))
	if s.Env == nil {
		s.Env = map[string]string{}
	}
	s.Env[pool.EnvInit] = "true"
	return nil
}

// present are the named secrets that still exist.
func (h *Hub) present(s sandbox.Spec) []string {
	if h.cfg.Secrets == nil {
		return nil
	}
	there := h.cfg.Secrets.List(holder(s.Owner))
	return slices.DeleteFunc(secretNames(s), func(name string) bool {
		return !slices.ContainsFunc(there, func(i secret.Info) bool { return i.Name == name })
	})
}

// brokered are the headers that a sandbox's way out adds.
func (h *Hub) brokered(s sandbox.Spec) []egress.Credential {
	names := h.present(s)
	if len(names) == 0 || h.cfg.Authority == nil {
		return nil
	}
	rules, err := h.cfg.Secrets.Rules(holder(s.Owner), names)
	if err != nil {
		h.cfg.Log.Error("cannot broker secrets", "sandbox", s.Name, "error", err)
		return nil
	}
	return rules
}

// rebroker brings the ways out of a tenant's sandboxes up to date.
func (h *Hub) rebroker(owner string) {
	for _, b := range h.all() {
		sb := b.seen()
		if sb.Spec.Owner != owner || sb.Spec.Annotations[noteSecrets] == "" {
			continue
		}
		if p := b.exit(); p != nil {
			if err := p.SetCredentials(h.brokered(sb.Spec)); err != nil {
				h.cfg.Log.Error("cannot broker secrets", "sandbox", sb.ID, "error", err)
			}
		}
	}
}

// equipment is what the server of a sandbox is told at each start.
func (h *Hub) equipment(s sandbox.Spec) (pool.Init, error) {
	in := pool.Init{Env: map[string]string{}}
	names := h.present(s)
	if len(names) == 0 {
		return in, nil
	}
	given, err := h.cfg.Secrets.Values(holder(s.Owner), names)
	if err != nil {
		return in, secretError(err)
	}
	for _, g := range given {
		switch g.Mode {
		case secret.Env:
			in.Env[g.Target] = g.Value.Reveal()
		case secret.File:
			in.Files = append(in.Files, pool.File{Path: g.Target, Content: []byte(g.Value.Reveal()), Mode: "0600"})
		}
	}
	if len(h.brokered(s)) > 0 {
		in.Files = append(in.Files, pool.File{Path: caInside, Content: h.trust(), Mode: "0644"})
		for _, name := range caVariables {
			// Who names a bundle of their own means it.
			if _, own := s.Env[name]; !own {
				in.Env[name] = caInside
			}
		}
	}
	return in, nil
}

// trust is what a sandbox trusts: what this machine does, and the hub for
// brokered hosts.
func (h *Hub) trust() []byte {
	var all bytes.Buffer
	for _, path := range caBundles {
		if b, err := os.ReadFile(path); err == nil {
			all.Write(b)
			break
		}
	}
	all.WriteByte('\n')
	all.Write(h.cfg.Authority.PEM())
	return all.Bytes()
}

// equip tells the server of a sandbox that has just been started what no Spec
// holds. Until then it does nothing.
func (h *Hub) equip(ctx context.Context, sb sandbox.Sandbox) error {
	if !pool.Waits(sb.Spec) || sb.Spec.Annotations[noteSecrets] == "" {
		return nil
	}
	in, err := h.equipment(sb.Spec)
	if err != nil {
		return err
	}
	bind := pool.BindHTTP(func(ctx context.Context, id string) (sandbox.Endpoint, error) {
		return h.cfg.Provider.Endpoint(ctx, id, 0)
	})
	if err := bind(ctx, sb, in); err != nil {
		return fmt.Errorf("give sandbox %s its secrets: %w", sb.ID, err)
	}
	return nil
}

// start starts a sandbox and tells its server what it needs to know. One that
// cannot be told is stopped again: it would do nothing.
func (h *Hub) start(ctx context.Context, id string, start func(context.Context, string) error) error {
	before, err := h.cfg.Provider.Get(ctx, id)
	if err != nil {
		return err
	}
	if err := start(ctx, id); err != nil {
		return err
	}
	sb, err := h.cfg.Provider.Get(ctx, id)
	if err != nil || before.State == sandbox.Running && before.Changed.Equal(sb.Changed) {
		return err
	}
	if err := h.equip(ctx, sb); err != nil {
		return errors.Join(op.Errorf(op.Unavailable, "%w", err), h.cfg.Provider.Stop(context.WithoutCancel(ctx), id))
	}
	return nil
}
