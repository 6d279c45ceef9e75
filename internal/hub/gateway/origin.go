package gateway

import (
	"context"
	"net/http"
	"net/url"
	"strings"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/auth"
	"github.com/cove-sandbox/cove/internal/auth/origin"
	"github.com/cove-sandbox/cove/internal/hub/internal/fault"
	"github.com/cove-sandbox/cove/internal/hub/internal/naming"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// What a sandbox serves is never trusted, not even what its own server does: programs
// inside can take its place. It must not share the hub's origin. So a browser is sent to
// a host name of the site, with a session of its own, or, where there are only addresses,
// gets pages that have no origin, with a pass in their path.

// Sessions starts sessions on sites.
type Sessions interface {
	// IssueFor issues a ticket that starts a session on one site.
	IssueFor(ctx context.Context, site string) (ticket string, err error)
	// Pass returns a segment of a path that carries a session on one site.
	Pass(ctx context.Context, site string) string
}

// SignIn tells the sign-in which requests are for sites.
func (g *Gateway) SignIn(c *auth.Config) {
	c.Site = func(r *http.Request) string {
		if site, _, below := g.findSite(r); below {
			return site.Key()
		}
		return ""
	}
	c.SignInURL = g.signInURL
	c.Visit, c.VisitHeaders = g.identifyVisitor, []string{headerAccessToken, headerTrafficToken}
	c.FindPass = func(path string) string {
		to, _ := parsePath(path)
		return to.pass
	}
}

// findSite returns the site that a request addresses by its host name.
func (g *Gateway) findSite(r *http.Request) (site naming.Site, domain string, below bool) {
	if g.isOwnName(r.Host) || g.isControlHost(r) {
		return naming.Site{}, "", false
	}
	return g.Domains.Find(r.Host)
}

// isOwnName reports whether a host below a domain is the hub's own.
func (g *Gateway) isOwnName(host string) bool {
	u := url.URL{Host: host}
	name := strings.TrimSuffix(strings.ToLower(u.Hostname()), ".")
	for _, own := range g.PublicHosts {
		u = url.URL{Host: own}
		if strings.EqualFold(u.Hostname(), name) {
			return true
		}
	}
	return false
}

// signInURL is where the hub hands over a session to the site that a request addresses: the
// same page, at the hub's own name.
func (g *Gateway) signInURL(r *http.Request, base *url.URL) string {
	site, domain, below := g.findSite(r)
	if !below || site.Name == "" {
		return ""
	}
	u := g.home(base, domain) + site.Path(r.URL.EscapedPath())
	if r.URL.RawQuery != "" {
		u += "?" + r.URL.RawQuery
	}
	return u
}

// home is the URL of the hub itself, for a caller who is at a site below a domain.
func (g *Gateway) home(base *url.URL, domain string) string {
	host := domain
	for _, own := range g.PublicHosts {
		if !strings.Contains(own, "*") {
			host = own
			break
		}
	}
	if port := base.Port(); port != "" && !strings.Contains(host, ":") {
		host += ":" + port
	}
	return base.Scheme + "://" + host
}

// baseOf is the URL at which the caller reaches the hub.
func baseOf(r *http.Request) *url.URL {
	if base := op.CallOf(r.Context()).Base; base != nil {
		return base
	}
	u := &url.URL{Scheme: "http", Host: r.Host}
	if r.TLS != nil {
		u.Scheme = "https"
	}
	return u
}

// isolate keeps what a sandbox serves from the hub's origin, and from other sites of the
// sandbox. It reports whether it has replied.
func (g *Gateway) isolate(w http.ResponseWriter, r *http.Request, to route, sb sandbox.Sandbox) bool {
	id, _ := auth.FromContext(r.Context())
	passed := id.Via == auth.ViaPass
	switch {
	// A session counts for its own site, however the request was addressed.
	case id.Site != "" && id.Site != to.site().Key(), passed != (to.pass != ""):
		if !origin.IsVisit(r) {
			g.refuse(w, r, op.Errorf(op.Denied,
				"the session of this page has ended, or is for another site of a sandbox; open the page from the hub again"))
			return true
		}
	// A worker would outlive its page, and see all requests below its path.
	case r.Header.Get("Service-Worker") != "" && !to.hasOrigin():
		g.refuse(w, r, op.Errorf(op.Denied, "a service worker needs an origin; open the page by a host name of the sandbox"))
		return true
	case passed || to.hasOrigin() || !origin.IsVisit(r) || !comesAsPerson(id):
		return false
	}
	g.redirectVisit(w, r, to, sb)
	return true
}

// redirectVisit sends a browser to where the site has an origin, or none at all.
func (g *Gateway) redirectVisit(w http.ResponseWriter, r *http.Request, to route, sb sandbox.Sandbox) {
	id, _ := auth.FromContext(r.Context())
	site, base := to.site(), baseOf(r)
	if !site.HasLabel() {
		site.Name = sb.ID
	}
	own, named := g.Domains.Origin(*base, site)
	switch {
	case to.pass != "":
		// A pass gives no other. The browser itself may have a session for one.
		origin.Redirect(w, base.Path+naming.Path(to.name)+to.full, r.URL.RawQuery)
	case named && !origin.IsFramed(r):
		query := r.URL.RawQuery
		if g.Sessions != nil && id.Via != auth.ViaOpen {
			ticket, err := g.Sessions.IssueFor(r.Context(), site.Key())
			if err != nil {
				g.refuse(w, r, op.Errorf(op.Exhausted, "open sandbox %q: %w", to.name, err))
				return
			}
			query = strings.TrimPrefix(query+"&ticket="+ticket, "&")
		}
		origin.Redirect(w, own.Scheme+"://"+own.Host+to.sitePath(), query)
	case g.Sessions == nil:
		g.refuse(w, r, fault.NoSandbox(to.name))
	default:
		path := to.full
		if path == "" {
			path = "/"
		}
		at := base.Path
		if _, domain, below := g.findSite(r); below {
			at = g.home(base, domain)
		}
		origin.Redirect(w, at+naming.Path(site.Name)+"/"+g.Sessions.Pass(r.Context(), site.Key())+path, r.URL.RawQuery)
	}
}

// comesAsPerson reports whether the caller can be a person in a browser. Programs that
// authenticate each request are served by path.
func comesAsPerson(id auth.Identity) bool {
	return id.Via == auth.ViaOpen || id.Via == auth.ViaCookie || id.Via == auth.ViaTicket
}

// confineOrigin marks a response of a site that shares its host with others.
func confineOrigin(t *trip, h http.Header) {
	origin.DropHostWide(h) // the hub's among them
	switch {
	case t.hasOrigin() && t.port == 0:
		origin.Confine(h, "frame-ancestors 'self'")
	case !t.hasOrigin():
		origin.Confine(h, origin.Opaque)
	}
	if t.pass == "" {
		return
	}
	// The sign-in has said which pages may read this: those without an origin.
	for name := range h {
		if strings.HasPrefix(name, "Access-Control-") {
			h.Del(name)
		}
	}
	origin.DropAncestors(h)
}
