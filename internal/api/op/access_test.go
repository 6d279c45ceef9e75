package op

import (
	"context"
	"net/http"
	"testing"
)

func TestNeeds(t *testing.T) {
	t.Parallel()
	call := func(s Spec) Op {
		s.Name, s.Tag, s.Doc, s.Route = "a_b", "a", "Do.", "POST /x"
		return New(s, func(context.Context, struct{}) (string, error) { return "", nil })
	}
	raw := Handle(Spec{Content: ContentAPI, Name: "c", Tag: "a", Doc: "Pass.", Route: "/y", Access: AccessSafe}, http.NotFoundHandler())
	unlisted := Handle(Spec{Content: ContentAPI, Name: "d", Tag: "a", Doc: "Pass.", Route: "/z"}, http.NotFoundHandler())
	request := func(method string, header ...string) *http.Request {
		r, err := http.NewRequest(method, "/y", nil)
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i+1 < len(header); i += 2 {
			r.Header.Set(header[i], header[i+1])
		}
		return r
	}
	for _, c := range []struct {
		op   Op
		r    *http.Request
		want Access
	}{
		{call(Spec{}), request("POST"), AccessWrite},
		{call(Spec{}), request("GET"), AccessWrite},
		{call(Spec{ReadOnly: true}), request("POST"), AccessWrite},
		{unlisted, request("GET"), AccessWrite},
		{call(Spec{ReadOnly: true, Access: AccessAdmin}), request("GET"), AccessAdmin},
		{call(Spec{Access: AccessRead}), nil, AccessRead},
		{call(Spec{}), nil, AccessWrite},
		{raw, request("GET"), AccessRead},
		{raw, request("HEAD"), AccessRead},
		{raw, request("GET", "Upgrade", "websocket"), AccessWrite},
		{raw, request("POST"), AccessWrite},
		{raw, request("PROPFIND"), AccessWrite},
		{raw, nil, AccessWrite},
	} {
		if got := c.op.RequiredAccess(c.r); got != c.want {
			t.Errorf("%s %+v: got %s, want %s", c.op.Name, c.r, got, c.want)
		}
	}
}
