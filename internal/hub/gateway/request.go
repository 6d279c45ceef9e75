package gateway

import (
	"net/http"
	"net/url"
	"strings"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/auth"
	"github.com/cove-sandbox/cove/internal/auth/origin"
)

// request holds everything about a request that a decision depends on.
type request struct {
	method string
	host   string
	url    *url.URL
	header http.Header
	base   *url.URL // the hub as the caller reaches it

	identity auth.Identity
	signedIn bool // authentication is done; identity is set
	reader   bool // the caller has read-only access
	shared   bool // the caller has a link
	port     int  // the only port that the caller may use; 0: all

	visit  bool // a browser opens a document,
	framed bool // and shows it in a frame
	page   bool // the reply is shown to a person

	target *target // found by an earlier decision; nil: not yet
}

type targetKey struct{}

// newRequest collects the inputs of a decision.
func newRequest(r *http.Request) request {
	call := op.CallOf(r.Context())
	q := request{method: r.Method, host: r.Host, url: r.URL, header: r.Header, base: baseOf(r, call), reader: call.Reader,
		visit: origin.IsVisit(r), framed: origin.IsFramed(r), page: origin.IsNavigation(r)}
	q.identity, q.signedIn = auth.FromContext(r.Context())
	if call.Share != nil {
		q.shared, q.port = true, call.Share.Port
	}
	if to, ok := r.Context().Value(targetKey{}).(target); ok {
		q.target = &to
	}
	return q
}

// baseOf is the URL at which the caller reaches the hub.
func baseOf(r *http.Request, call *op.Call) *url.URL {
	if call.Base != nil {
		return call.Base
	}
	u := &url.URL{Scheme: "http", Host: r.Host}
	if r.TLS != nil {
		u.Scheme = "https"
	}
	return u
}

// hasKey reports whether a request has a key for the hub, valid or not.
func (q request) hasKey() bool {
	scheme, _, _ := strings.Cut(q.header.Get("Authorization"), " ")
	return q.header.Get("X-Api-Key") != "" || strings.EqualFold(scheme, "Bearer")
}

// isAnonymous reports whether a program sent a request without any credential.
func (q request) isAnonymous() bool {
	return !q.hasKey() && !q.fromBrowser() && q.header.Get("Cookie") == "" && !q.url.Query().Has("ticket")
}

// fromBrowser reports whether a request has headers that only browsers send. Node.js sends
// Sec-Fetch-Mode as well, but browsers always send Sec-Fetch-Site too.
func (q request) fromBrowser() bool {
	for name := range q.header {
		if name == "Origin" || strings.HasPrefix(name, "Sec-Fetch-") && name != "Sec-Fetch-Mode" {
			return true
		}
	}
	return false
}

// fromPerson reports whether the caller can be a person with a browser. Programs authenticate
// each request and are served by path.
func (q request) fromPerson() bool {
	return q.identity.Via == auth.ViaOpen || q.identity.Via == auth.ViaCookie || q.identity.Via == auth.ViaTicket
}
