package hub

import (
	"context"
	"errors"
	"time"

	"github.com/cove-sandbox/cove/internal/op"
	"github.com/cove-sandbox/cove/internal/tenant"
)

// keyOps govern who may come in.
func (h *Hub) keyOps() []op.Op {
	return []op.Op{
		op.New(op.Spec{Name: "key_add", Route: "POST /api/v1/key", Tag: "key", Access: op.AccessAdmin, NoTool: true,
			Doc: "Make a key for a tenant. Its secret is told now and never again."}, h.AddKey),
		op.New(op.Spec{Name: "key_list", Route: "GET /api/v1/key", Tag: "key", Access: op.AccessAdmin, ReadOnly: true, NoTool: true,
			Columns: []string{"id", "tenant", "role", "name", "created", "expires", "revoked"},
			Doc:     "List the keys of all tenants, without their secrets. Those that ended stay listed for a while."}, h.ListKeys),
		op.New(op.Spec{Name: "key_revoke", Route: "DELETE /api/v1/key/{id}", Tag: "key", Access: op.AccessAdmin, Destructive: true, NoTool: true,
			Doc: "End a key, at once, with all sessions and links that were made with it."}, h.RevokeKey),
	}
}

// AddKeyIn is a key to be.
type AddKeyIn struct {
	Tenant string  `json:"tenant" arg:"true" doc:"Whose it is: up to 64 letters, digits and ._@-"`
	Role   string  `json:"role" default:"user" enum:"admin,user,viewer" doc:"What it may do: see (viewer), use (user), govern all tenants (admin)"`
	Name   string  `json:"name" default:"" doc:"What it is for, in a few words"`
	Days   float64 `json:"days" default:"0" minimum:"0" maximum:"36500" doc:"Days until it expires; 0: never"`
}

// KeyOut is a key.
type KeyOut struct {
	ID      string     `json:"id"`
	Tenant  string     `json:"tenant"`
	Role    string     `json:"role"`
	Name    string     `json:"name"`
	Created time.Time  `json:"created"`
	Expires *time.Time `json:"expires" doc:"null: never"`
	Revoked *time.Time `json:"revoked" doc:"When it was ended; null: it was not"`
	Secret  string     `json:"secret,omitempty" doc:"To sign in with; told only when it is made"`
}

func keyOut(k tenant.Key, secret string) KeyOut {
	out := KeyOut{ID: k.ID, Tenant: k.Tenant, Role: string(k.Role), Name: k.Name, Created: k.Created, Secret: secret}
	if !k.Expires.IsZero() {
		out.Expires = &k.Expires
	}
	if !k.Revoked.IsZero() {
		out.Revoked = &k.Revoked
	}
	return out
}

// store is the tenants' file.
func (h *Hub) store() (*tenant.Store, error) {
	if h.cfg.Tenants == nil {
		return nil, op.Errorf(op.Invalid, "this hub has one owner and no keys; start it with --tenants, or COVE_TENANTS=true")
	}
	return h.cfg.Tenants, nil
}

// tenantError turns an error of the store into one for the caller.
func tenantError(err error) error {
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

// AddKey makes a key.
func (h *Hub) AddKey(ctx context.Context, in AddKeyIn) (KeyOut, error) {
	s, err := h.store()
	if err != nil {
		return KeyOut{}, err
	}
	var expires time.Time
	if in.Days > 0 {
		expires = time.Now().Add(time.Duration(in.Days * float64(24*time.Hour)))
	}
	secret, k, err := s.Add(in.Tenant, tenant.Role(in.Role), in.Name, expires)
	if err != nil {
		return KeyOut{}, tenantError(err)
	}
	op.CallOf(ctx).TargetName = k.ID
	return keyOut(k, secret), nil
}

// ListKeys shows the keys.
func (h *Hub) ListKeys(context.Context, None) ([]KeyOut, error) {
	s, err := h.store()
	if err != nil {
		return nil, err
	}
	out := []KeyOut{}
	for _, k := range s.List() {
		out = append(out, keyOut(k, ""))
	}
	return out, nil
}

// IDIn names a key or a share.
type IDIn struct {
	ID string `path:"id" doc:"Its id"`
}

// RevokeKey ends a key.
func (h *Hub) RevokeKey(ctx context.Context, in IDIn) (string, error) {
	s, err := h.store()
	if err != nil {
		return "", err
	}
	op.CallOf(ctx).TargetName = clip(in.ID)
	if err := s.Revoke(in.ID); err != nil {
		return "", tenantError(err)
	}
	return "Key " + in.ID + " revoked", nil
}
