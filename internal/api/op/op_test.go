package op

import (
	"context"
	"net/http"
	"testing"
)

func TestPublic(t *testing.T) {
	spec := func(name, route string, public bool) Op {
		return Handle(Spec{Content: ContentAPI, Name: name, Route: route, Tag: "x", Doc: "X.", Public: public}, http.NotFoundHandler())
	}
	table := NewTable([]Op{spec("health", "GET /healthz", true), spec("ticket", "POST /tickets", true), spec("page", "GET /page", false)})
	for _, tt := range []struct {
		method, path string
		want         bool
	}{
		{"GET", "/healthz", true}, {"HEAD", "/healthz", true}, {"POST", "/healthz", false}, {"GET", "/healthz/", false},
		{"POST", "/tickets", true}, {"HEAD", "/tickets", false}, {"GET", "/page", false}, {"GET", "/none", false},
	} {
		if got := table.Public(tt.method, tt.path); got != tt.want {
			t.Errorf("%s %s: got %v, want %v", tt.method, tt.path, got, tt.want)
		}
	}
}

func TestTableRefusesDuplicates(t *testing.T) {
	of := func(name, route, verb string, also ...string) Op {
		return New(Spec{Name: name, Route: route, Also: also, Verb: verb, Tag: "x", Doc: "X."},
			func(context.Context, None) (None, error) { return None{}, nil })
	}
	if err := NewTable([]Op{of("a", "GET /a", ""), of("b", "POST /a", "", "GET /b")}).Check(); err != nil {
		t.Errorf("different operations: got %v, want no error", err)
	}
	for what, list := range map[string][]Op{
		"route":       {of("a", "GET /a", ""), of("b", "GET /a", "")},
		"other route": {of("a", "GET /a", ""), of("b", "GET /b", "", "GET /a")},
		"verb":        {of("a", "GET /a", "x y"), of("b", "GET /b", "x y")},
	} {
		if NewTable(list).Check() == nil {
			t.Errorf("two operations with the same %s: got no error, want one", what)
		}
	}
}

func TestHTTPStatus(t *testing.T) {
	for code, want := range map[Code]int{Invalid: 400, Unauthenticated: 401, Denied: 403, NotFound: 404,
		Conflict: 409, TooLarge: 413, Exhausted: 429, Canceled: 499, Internal: 500, Unavailable: 503, Upstream: 502, "": 500} {
		if got := code.HTTPStatus(); got != want {
			t.Errorf("%q: got %d, want %d", code, got, want)
		}
	}
}

func TestLabel(t *testing.T) {
	o := New(Spec{Name: "x", Route: "POST /x/{id}", Tag: "x", Doc: "X."},
		func(context.Context, everything) (None, error) { return None{}, nil })
	want := map[string]string{"id": "string", "page": "int", "ratio": "number", "on": "bool", "list": "list",
		"inner": "json", "screen": "size", "env": "key=value", "data": "base64"}
	for _, f := range o.In().Fields {
		if w, ok := want[f.Name]; ok && f.Type.Label() != w {
			t.Errorf("%s: got %s, want %s", f.Name, f.Type.Label(), w)
		}
		delete(want, f.Name)
	}
	if len(want) > 0 {
		t.Errorf("the struct lacks %v", want)
	}
}
