package access

import (
	"context"
	"errors"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/hub/internal/fault"
	"github.com/cove-sandbox/cove/internal/hub/internal/tenant"
)

// KeyOps lists the operations on keys.
func (g *Gate) KeyOps() []op.Op {
	return []op.Op{
		op.New(op.Spec{Name: "key_add", Tool: "addKey", Route: "POST /api/v1/key", Tag: "key", Access: op.AccessAdmin, NoTool: true,
			Doc: "Create a key for a tenant. Its secret is shown only once."}, g.AddKey),
		op.New(op.Spec{Name: "key_list", Tool: "listKeys", Route: "GET /api/v1/key", Tag: "key",
			Access: op.AccessAdmin, ReadOnly: true, NoTool: true,
			Columns: []string{"id", "tenant", "role", "name", "created", "expires", "revoked"},
			Doc:     "List the keys of all tenants, without their secrets. Includes recently revoked and expired keys."}, g.ListKeys),
		op.New(op.Spec{Name: "key_revoke", Tool: "revokeKey", Route: "DELETE /api/v1/key/{id}", Tag: "key",
			Access: op.AccessAdmin, Destructive: true, NoTool: true,
			Doc: "Revoke a key immediately, with all sessions and links that it created."}, g.RevokeKey),
	}
}

// AddKeyIn describes a new key.
type AddKeyIn struct {
	Tenant string   `json:"tenant" arg:"true" doc:"Tenant: up to 64 letters, digits and ._@-"`
	Role   string   `json:"role" default:"user" enum:"admin,user,viewer" doc:"viewer (read-only), user (sandboxes) or admin (all tenants)"`
	Name   string   `json:"name" default:"" doc:"Short description of its purpose"`
	Tools  []string `json:"tools" nullable:"true" doc:"Restrict the key to MCP and these tools, such as list*. Default: unrestricted"`
	Days   float64  `json:"days" default:"0" minimum:"0" maximum:"36500" doc:"Days until it expires; 0: never"`
}

// KeyOut is a key.
type KeyOut struct {
	ID      string     `json:"id"`
	Tenant  string     `json:"tenant"`
	Role    string     `json:"role"`
	Name    string     `json:"name"`
	Created time.Time  `json:"created"`
	Expires *time.Time `json:"expires" doc:"null: never"`
	Revoked *time.Time `json:"revoked" doc:"Time of revocation; null: not revoked"`
	Tools   []string   `json:"tools,omitempty" doc:"MCP tools that it is limited to; missing: unrestricted"`
	Secret  string     `json:"secret,omitempty" doc:"The secret to sign in with; shown only at creation"`
	E2BKey  string     `json:"e2b_api_key,omitempty" doc:"The same secret in the form that all E2B clients accept; shown only at creation"`
}

func keyOut(k tenant.Key, secret string) KeyOut {
	out := KeyOut{ID: k.ID, Tenant: k.Tenant, Role: string(k.Role), Name: k.Name, Created: k.Created, Tools: k.Tools, Secret: secret}
	if secret != "" {
		out.E2BKey = tenant.ClientKey(secret)
	}
	if !k.Expires.IsZero() {
		out.Expires = &k.Expires
	}
	if !k.Revoked.IsZero() {
		out.Revoked = &k.Revoked
	}
	return out
}

// store returns the store of keys and links, if the hub has tenants.
func (g *Gate) store() (*tenant.Store, error) {
	if g.Tenants == nil {
		return nil, op.Errorf(op.Invalid, "this hub has a single owner and no keys; start it with --tenants or COVE_TENANTS=true")
	}
	return g.Tenants, nil
}

// opError turns an error of the store into one for the caller.
func opError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, tenant.ErrInvalid):
		return op.Errorf(op.Invalid, "%w", err)
	case errors.Is(err, tenant.ErrUnknown):
		return op.Errorf(op.NotFound, "%w", err)
	case errors.Is(err, tenant.ErrFull):
		return op.Errorf(op.Exhausted, "%w", err)
	}
	return err
}

// AddKey creates a key.
func (g *Gate) AddKey(ctx context.Context, in AddKeyIn) (KeyOut, error) {
	s, err := g.store()
	if err != nil {
		return KeyOut{}, err
	}
	var expires time.Time
	if in.Days > 0 {
		expires = time.Now().Add(time.Duration(in.Days * float64(24*time.Hour)))
	}
	secret, k, err := s.Add(in.Tenant, tenant.Role(in.Role), in.Name, expires, in.Tools...)
	if err != nil {
		return KeyOut{}, opError(err)
	}
	op.CallOf(ctx).TargetName = k.ID
	return keyOut(k, secret), nil
}

// ListKeys lists all keys.
func (g *Gate) ListKeys(context.Context, op.None) ([]KeyOut, error) {
	s, err := g.store()
	if err != nil {
		return nil, err
	}
	out := []KeyOut{}
	for _, k := range s.List() {
		out = append(out, keyOut(k, ""))
	}
	return out, nil
}

// IDIn selects a key or a link.
type IDIn struct {
	ID string `path:"id" doc:"ID of the key or link"`
}

// RevokeKey revokes a key.
func (g *Gate) RevokeKey(ctx context.Context, in IDIn) (string, error) {
	s, err := g.store()
	if err != nil {
		return "", err
	}
	op.CallOf(ctx).TargetName = fault.Clip(in.ID)
	if err := s.Revoke(in.ID); err != nil {
		return "", opError(err)
	}
	return "Key " + in.ID + " revoked", nil
}
