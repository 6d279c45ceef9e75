package caller

import (
	"context"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

func TestOwner(t *testing.T) {
	t.Parallel()
	seen := map[string]string{}
	for _, subject := range []string{"", "anna", "a@b.c", "auth0|x", "sub-0123", "-x", strings.Repeat("x", 65), "ä", "a b", "../x"} {
		o := Owner(op.WithCall(context.Background(), &op.Call{Subject: subject}))
		if err := (sandbox.Spec{Owner: o}).Validate(); err != nil {
			t.Errorf("%q: %v", subject, err)
		}
		if other, ok := seen[o]; ok {
			t.Errorf("%q and %q are both %q", subject, other, o)
		}
		seen[o] = subject
	}
	if o := Owner(context.Background()); o != "" {
		t.Error(o)
	}
}
