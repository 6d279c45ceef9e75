package app

import (
	"context"
	"net/http"

	"github.com/cove-sandbox/cove/internal/api/op"
)

// hubCaller is the context key of the caller that a hub names.
type hubCaller struct{}

// believeCaller lets a hub name the caller. Programs in the sandbox, which reach the server by
// other doors, cannot.
func believeCaller(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if name := r.Header.Get(op.CallerHeader); name != "" {
			r = r.WithContext(context.WithValue(r.Context(), hubCaller{}, name))
		}
		next.ServeHTTP(w, r)
	})
}

// noteCaller notes who calls, and whether through a page of ours.
func noteCaller(r *http.Request) {
	call := op.CallOf(r.Context())
	if name, ok := r.Context().Value(hubCaller{}).(string); ok {
		call.ReceiveCaller(name)
	}
	r.Header.Del(op.CallerHeader) // nothing behind this is told, such as what serves a port
	if r.Header.Get("Sec-Fetch-Site") == "same-origin" {
		call.Via = "page"
	}
}

// admit refuses what a caller may not use whom a hub lets only read. Who reaches the
// server without a hub may use everything.
func admit(r *http.Request, o op.Op) (done func(), err error) {
	noteCaller(r)
	if r.Header.Get(op.AccessHeader) != "" {
		op.CallOf(r.Context()).Reader = true
		if !o.Public && o.RequiredAccess(r) != op.AccessRead {
			return nil, op.Errorf(op.Denied,
				"your access to this sandbox is read-only and does not include %s; ask for a key with the role "+
					"user, or a link with write access", o.Name)
		}
	}
	return func() {}, nil
}
