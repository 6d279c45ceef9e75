// Package caller determines whose sandboxes are visible to a call.
package caller

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/hub/internal/tenant"
)

// Owner is the owner whose sandboxes a call can see and create. It is empty for the single owner of a hub
// without tenants. A subject that is not a plain name, such as one of another system, is replaced by its
// digest, because owners are part of files, labels and objects.
func Owner(ctx context.Context) string {
	subject := op.CallOf(ctx).Subject
	const digested = "sub-"
	plain := len(subject) <= 64 && !strings.HasPrefix(subject, digested) && !strings.HasPrefix(subject, "-") &&
		strings.Trim(subject, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._@-") == ""
	if plain {
		return subject
	}
	sum := sha256.Sum256([]byte(subject))
	return digested + hex.EncodeToString(sum[:20])
}

// IsAdmin reports whether the caller may see the items of all tenants.
func IsAdmin(call *op.Call) bool {
	return call.Share == nil && tenant.Role(call.Role).May(tenant.Admin)
}

// UserIn selects a tenant.
type UserIn struct {
	User string `query:"user" default:"" doc:"Tenant whose items to show, or * for all; admins only"`
}

// Selection is the owner or owners whose items a call selects.
type Selection struct {
	Owner string
	All   bool // all owners; then Owner is meaningless
}

// Select resolves the user in a request; only admins may select another than their own.
func Select(ctx context.Context, user string) (Selection, error) {
	owner := Owner(ctx)
	if user == "" || user == owner {
		return Selection{Owner: owner}, nil
	}
	if !IsAdmin(op.CallOf(ctx)) {
		return Selection{}, op.Errorf(op.NotFound, "no such user: %.60q", user)
	}
	return Selection{Owner: user, All: user == "*"}, nil
}

// Filter is the owner for filters of providers; empty: all owners.
func (s Selection) Filter() string {
	if s.All {
		return ""
	}
	return s.Owner
}

// Has reports whether an owner is selected. For providers an empty owner means all owners, so check their
// lists.
func (s Selection) Has(owner string) bool { return s.All || owner == s.Owner }
