package gateway

import (
	"context"
	"net/http"
	"net/url"
	"strings"

	"github.com/cove-sandbox/cove/internal/auth"
	"github.com/cove-sandbox/cove/internal/auth/origin"
)

// The content of a sandbox is never trusted, not even that of its own server: programs inside can
// replace it. It must not share the hub's origin. So a browser is redirected to a host name of the
// site, with a session for that site. If there are only IP addresses, the browser gets pages
// without an origin, with a pass in their path.

// Sessions starts sessions on sites.
type Sessions interface {
	// IssueFor issues a ticket that starts a session on one site.
	IssueFor(ctx context.Context, site string) (ticket string, err error)
	// Pass returns a path segment that carries a session on one site.
	Pass(ctx context.Context, site string) string
}

// SignIn configures authentication for requests to sites.
func (g *Gateway) SignIn(c *auth.Config) {
	c.Site = func(r *http.Request) string {
		if site, _, below := g.policy.findSite(r.Host); below {
			return site.Key()
		}
		return ""
	}
	c.SignInURL = func(r *http.Request, base *url.URL) string { return g.policy.signInURL(r.Host, r.URL, base) }
	c.Visit, c.VisitHeaders = g.identifyVisitor, []string{headerAccessToken, headerTrafficToken}
	c.FindPass = func(path string) string {
		to, _ := parsePath(path)
		return to.pass
	}
}

// confineOrigin restricts a response of a site that shares its host with others.
func confineOrigin(to target, h http.Header) {
	origin.DropHostWide(h) // these would apply to the hub as well
	switch {
	case to.hasOrigin() && to.port == 0:
		origin.Confine(h, "frame-ancestors 'self'")
	case !to.hasOrigin():
		origin.Confine(h, origin.Opaque)
	}
	if to.pass == "" {
		return
	}
	// Authentication has already set which pages may read this: those without an origin.
	for name := range h {
		if strings.HasPrefix(name, "Access-Control-") {
			h.Del(name)
		}
	}
	origin.DropAncestors(h)
}
