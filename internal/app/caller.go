package app

import (
	"context"
	"net/http"
	"strings"

	"github.com/cove-sandbox/cove/internal/api/op"
)

// hubCaller is the context key of the caller that a hub names.
type hubCaller struct{}

// trustCaller accepts the caller that a hub names. Programs in the sandbox, which use other
// addresses, cannot name one.
func trustCaller(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if name := r.Header.Get(op.CallerHeader); name != "" {
			r = r.WithContext(context.WithValue(r.Context(), hubCaller{}, name))
		}
		next.ServeHTTP(w, r)
	})
}

// setCaller sets the caller of a call, and whether a built-in page sent it.
func setCaller(r *http.Request) {
	call := op.CallOf(r.Context())
	if name, ok := r.Context().Value(hubCaller{}).(string); ok {
		call.ReceiveCaller(name)
	}
	r.Header.Del(op.CallerHeader) // services behind the server, such as those on ports, must not receive it
	if r.Header.Get("Sec-Fetch-Site") == "same-origin" {
		call.Via = "page"
	}
}

// admit rejects operations that a caller with read-only access may not use. A hub restricts the
// access; callers without a hub may use all operations.
func admit(r *http.Request, o op.Op) (done func(), err error) {
	setCaller(r)
	if access := r.Header.Get(op.AccessHeader); access != "" {
		op.CallOf(r.Context()).Reader = true
		need := o.RequiredAccess(r)
		if !o.Public && need != op.AccessRead && (need != op.AccessWatch || access != string(op.AccessWatch)) {
			return nil, op.Errorf(op.Denied,
				"your access to this sandbox is read-only and does not include %s; request a key with the role "+
					"user, or a link with write access", o.Name)
		}
	}
	return func() {}, nil
}

// watchElsewhere redirects callers with read-only access from the page of the sandbox, whose controls they
// cannot use, to the page for watchers.
func watchElsewhere(list []op.Op) []op.Op {
	for i, o := range list {
		if o.Name != "home_page" {
			continue
		}
		next := o.Handler
		list[i].Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if op.CallOf(r.Context()).Reader && strings.Contains(r.Header.Get("Accept"), "text/html") {
				w.Header().Set("Location", "watch") // relative, so that it works below any prefix
				w.WriteHeader(http.StatusSeeOther)
				return
			}
			next.ServeHTTP(w, r)
		})
	}
	return list
}
