// Package caller says whose sandboxes a call may see. Everybody else's do not
// exist for it.
package caller

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/hub/internal/tenant"
)

// Owner is whose sandboxes a call may see and create. It is empty for the single
// owner of a hub without tenants. A subject that is no plain name, such as an
// address of another system, is replaced by its digest, since owners are written
// into files, labels and objects.
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

// IsAdmin reports whether the caller may see what belongs to all tenants.
func IsAdmin(call *op.Call) bool {
	return call.Share == nil && tenant.Role(call.Role).May(tenant.Admin)
}

// UserIn names a tenant.
type UserIn struct {
	User string `query:"user" default:"" doc:"Tenant whose items to show, or * for all; admins only"`
}

// Selection is whose items a call is about.
type Selection struct {
	Owner string
	All   bool // everybody's; then Owner is meaningless
}

// Select resolves the user that a call names; only an admin may name another.
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

// Filter is what providers are asked for: the owner, or empty for everybody.
func (s Selection) Filter() string {
	if s.All {
		return ""
	}
	return s.Owner
}

// Has reports whether an owner is selected. Providers take the empty owner for
// everybody, so their lists must be checked.
func (s Selection) Has(owner string) bool { return s.All || owner == s.Owner }
