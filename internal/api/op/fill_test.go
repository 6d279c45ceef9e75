package op_test

import (
	"context"
	"testing"

	"github.com/cove-sandbox/cove/internal/api/op"
)

type shelf struct {
	Books []string `json:"books"`
	Next  *shelf   `json:"next,omitempty"`
}

// TestFillingCopiesSharedLists: concurrent calls may return the same list.
func TestFillingCopiesSharedLists(t *testing.T) {
	t.Parallel()
	kept := []shelf{{Next: &shelf{}}}
	o := op.New(op.Spec{Name: "shelves", Route: "GET /shelves", Tag: "test", Doc: "List shelves."},
		func(context.Context, op.None) ([]shelf, error) { return kept, nil })
	in, err := o.Bind(op.Input{})
	if err != nil {
		t.Fatal(err)
	}
	out, err := o.Call(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	got := out.([]shelf)
	if got[0].Books == nil || got[0].Next.Books == nil {
		t.Errorf("got %+v, want empty lists instead of nil", got)
	}
	if kept[0].Books != nil || kept[0].Next.Books != nil {
		t.Errorf("the service's own list became %+v, want it unchanged", kept)
	}
}
