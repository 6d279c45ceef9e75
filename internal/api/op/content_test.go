package op

import (
	"context"
	"net/http"
	"strings"
	"testing"
)

// A raw route without a class of content panics when it is created.
func TestContentIsDeclared(t *testing.T) {
	t.Parallel()
	spec := Spec{Name: "x", Route: "GET /x", Tag: "t", Doc: "Doc."}
	for name, build := range map[string]func(Spec) Op{
		"handler": func(s Spec) Op { return Handle(s, http.NotFoundHandler()) },
		"blob":    func(s Spec) Op { return New(s, func(context.Context, None) (*Blob, error) { return nil, nil }) },
	} {
		func() {
			defer func() {
				if text, _ := recover().(string); !strings.Contains(text, "requires Content") {
					t.Errorf("%s without a class: got panic %q, want one that names the field", name, text)
				}
			}()
			build(spec)
		}()
		declared := spec
		declared.Content = ContentForeign
		if o := build(declared); o.Content != ContentForeign {
			t.Errorf("%s: got class %d, want the declared one", name, o.Content)
		}
	}
	if o := New(spec, func(context.Context, None) (string, error) { return "", nil }); o.Content != ContentAPI {
		t.Errorf("reply in JSON: got class %d, want ContentAPI", o.Content)
	}
}
