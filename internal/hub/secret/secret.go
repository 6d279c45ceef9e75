// Package secret owns the secrets of tenants and provides them to sandboxes: as a variable, as a file,
// or brokered by the sandbox's egress proxy, so that the sandbox never sees the value.
//
// A Spec never contains a secret. The server inside receives them at each start.
package secret

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/hub/internal/caller"
	"github.com/cove-sandbox/cove/internal/hub/internal/fault"
	"github.com/cove-sandbox/cove/internal/hub/internal/secretstore"
	"github.com/cove-sandbox/cove/internal/network/certificate"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// Provider is the part of a provider that the service uses.
type Provider interface {
	Abilities() sandbox.Abilities
	Endpoint(ctx context.Context, id string, port int) (sandbox.Endpoint, error)
}

// Config of a Service.
type Config struct {
	Provider Provider
	Store    *secretstore.Store // nil: the hub stores no secrets
	// Authority signs certificates for hosts to which secrets are brokered; nil: no secret can be
	// brokered.
	Authority *certificate.Authority
	// Changed is called when the secrets of an owner have changed.
	Changed func(owner string)
	Log     *slog.Logger
}

// Service stores secrets and provides them to sandboxes.
type Service struct{ Config }

// New returns a service.
func New(cfg Config) *Service { return &Service{cfg} }

// Ops lists the operations.
func (sv *Service) Ops() []op.Op {
	return []op.Op{
		op.New(op.Spec{Name: "secret_set", Tool: "setSecret", Route: "PUT /api/v1/secret/{name}", Tag: "secret", NoVerb: true,
			Doc: "Store or replace a secret. It can never be read back. A sandbox that names it at creation " +
				"gets it as an environment variable, as a file, or brokered: " +
				"the egress proxy adds the header to requests to the given hosts, and the sandbox never sees the value."}, sv.Set),
		op.New(op.Spec{Name: "secret_list", Access: op.AccessRead, Tool: "listSecrets", Route: "GET /api/v1/secret",
			Tag: "secret", ReadOnly: true,
			Columns: []string{"name", "mode", "target", "hosts", "updated"},
			Doc:     "List secrets, without their values."}, sv.List),
		op.New(op.Spec{Name: "secret_delete", Tool: "deleteSecret", Route: "DELETE /api/v1/secret/{name}",
			Tag: "secret", Verb: "secret rm", Destructive: true,
			Doc: "Delete a secret. Brokering stops immediately. Sandboxes keep variables and files that they already have."}, sv.Delete),
	}
}

// SetSecretIn is a secret.
type SetSecretIn struct {
	Name     string   `path:"name" doc:"Name: letters, digits, _, - and ."`
	Value    string   `json:"value" minLength:"1" doc:"The value"`
	Mode     string   `json:"mode" default:"env" enum:"env,file,broker" doc:"How sandboxes get it"`
	Target   string   `json:"target" default:"" doc:"Environment variable (default: the name) or absolute path of the file"`
	Hosts    []string `json:"hosts" nullable:"true" doc:"Brokered: host names, *.name for all subdomains, optionally with :port"`
	Header   string   `json:"header" default:"" doc:"Brokered: the header; default Authorization"`
	Format   string   `json:"format" default:"" doc:"Brokered: value of the header, with %s for the secret; default: Bearer %s"`
	Insecure bool     `json:"insecure" default:"false" doc:"Brokered: over plain HTTP too"`
}

// SecretOut is a secret without its value.
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

func secretOut(i secretstore.Info) SecretOut {
	return SecretOut{i.Name, string(i.Mode), i.Target, i.Hosts, i.Header, i.Format, i.Insecure, i.Created, i.Updated}
}

// store returns the store, if the hub stores secrets.
func (sv *Service) store() (*secretstore.Store, error) {
	if sv.Store == nil {
		return nil, op.Errorf(op.Invalid, "this hub stores no secrets")
	}
	return sv.Store, nil
}

// holder is the name under which an owner's secrets are stored. The single owner of a hub without
// tenants has no name; no name of a tenant begins with a dash.
func holder(owner string) string {
	if owner == "" {
		return "-owner"
	}
	return owner
}

func opError(err error) error {
	switch {
	case errors.Is(err, secretstore.ErrInvalid):
		return op.Errorf(op.Invalid, "%w", err)
	case errors.Is(err, secretstore.ErrNotFound):
		return op.Errorf(op.NotFound, "%w", err)
	case errors.Is(err, secretstore.ErrTooMany):
		return op.Errorf(op.Exhausted, "%w", err)
	}
	return err
}

// Set stores a secret.
func (sv *Service) Set(ctx context.Context, in SetSecretIn) (SecretOut, error) {
	s, err := sv.store()
	if err != nil {
		return SecretOut{}, err
	}
	op.CallOf(ctx).TargetName = fault.Clip(in.Name)
	owner := caller.Owner(ctx)
	info, err := s.Set(holder(owner), secretstore.Secret{
		Name: in.Name, Value: secretstore.New(in.Value), Mode: secretstore.Mode(in.Mode), Target: in.Target,
		Hosts: in.Hosts, Header: in.Header, Format: in.Format, Insecure: in.Insecure,
	})
	if err != nil {
		return SecretOut{}, opError(err)
	}
	sv.Changed(owner)
	return secretOut(info), nil
}

// List lists secrets without their values.
func (sv *Service) List(ctx context.Context, _ op.None) ([]SecretOut, error) {
	s, err := sv.store()
	if err != nil {
		return nil, err
	}
	out := []SecretOut{}
	for _, i := range s.List(holder(caller.Owner(ctx))) {
		out = append(out, secretOut(i))
	}
	return out, nil
}

// DeleteSecretIn names a secret.
type DeleteSecretIn struct {
	Name string `path:"name" doc:"Name of the secret"`
}

// Delete removes a secret.
func (sv *Service) Delete(ctx context.Context, in DeleteSecretIn) (string, error) {
	s, err := sv.store()
	if err != nil {
		return "", err
	}
	op.CallOf(ctx).TargetName = fault.Clip(in.Name)
	owner := caller.Owner(ctx)
	if err := s.Delete(holder(owner), in.Name); err != nil {
		return "", opError(err)
	}
	sv.Changed(owner)
	return "Secret " + in.Name + " deleted successfully", nil
}
