package gateway

import (
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/auth"
	"github.com/cove-sandbox/cove/internal/hub/fleet"
	"github.com/cove-sandbox/cove/internal/hub/internal/fault"
	"github.com/cove-sandbox/cove/internal/hub/internal/naming"
	"github.com/cove-sandbox/cove/internal/hub/internal/token"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// action is what the gateway does with a request.
type action int

const (
	serveHub       action = iota // not for a sandbox: the hub's own operations serve it
	forward                      // to the sandbox
	describe                     // reply with the identity of the sandbox
	confirmHealth                // the reply that an E2B client expects from a running sandbox
	redirectFolder               // to the same path with a slash, so that relative links work
	redirectOrigin               // to the site's own host name, with a ticket
	redirectPass                 // to a path of the hub with a pass, so that the page has no origin
	redirectHub                  // to the same path without its pass
	offerStart                   // a page with a button that starts the sandbox
	reject
)

// decision is what the gateway does with a request, and why.
type decision struct {
	action action
	target target

	sandbox  sandbox.Sandbox // of the target; its Spec names the owner
	wake     bool            // wake the sandbox and keep it awake
	patience time.Duration   // how long the request waits until the sandbox is awake
	started  bool            // a person starts the sandbox; redirect to its page

	location string      // of a redirect; for redirectPass, everything before the pass; for describe, the hub's page
	path     string      // after the pass
	session  naming.Site // the site for which the ticket or pass is issued; no name: none is issued

	reason error // of a rejection
	status int   // of a rejection; 0: that of the reason's code
	e2b    bool  // the rejection has the form that E2B clients expect
}

// policy holds the settings that decisions depend on.
type policy struct {
	domains     naming.Domains
	publicHosts []string
	sessions    bool // sites have sessions
	wakeWait    time.Duration
	pageWait    time.Duration
}

// lookup answers what a decision depends on in addition to the request.
type lookup interface {
	// Find returns the sandbox that the caller knows under a name.
	Find(name string) (sandbox.Sandbox, error)
	// FindSigned returns the ID of the sandbox whose token signed a URL.
	FindSigned(link token.Link) (id string, ok bool)
	// Abilities of the provider.
	Abilities() sandbox.Abilities
}

// errNotProxy rejects requests of the method CONNECT.
var errNotProxy = errors.New("this is not a forward proxy")

func refuse(err error) decision { return decision{action: reject, reason: err} }

// decide decides about a request, and changes nothing. Front has called locate before, to route the request, and
// passes the target on: locate returns it without another search.
func (p policy) decide(q request, find lookup) decision {
	if q.method == http.MethodConnect {
		return decision{action: reject, reason: errNotProxy, status: http.StatusMethodNotAllowed}
	}
	d := p.locate(q, find)
	switch d.action {
	case forward:
	case serveHub:
		return refuse(fault.NoSandbox(nameIn(q.url)))
	default:
		return d
	}
	sb, err := find.Find(d.target.name)
	if err != nil {
		d.action, d.reason, d.e2b = reject, err, d.target.e2b
		return d
	}
	d.sandbox = sb
	return p.decideFor(q, d, find)
}

// decideFor decides about a request whose sandbox is known.
func (p policy) decideFor(q request, d decision, find lookup) decision {
	if d.target.e2b {
		if d = decideE2B(q, d); d.action != forward {
			return d
		}
	}
	if q.port != 0 {
		// Address the port itself, so that no path reaches another one.
		if d.target = d.target.toPort(); d.target.port != q.port {
			return refuse(fault.NoSandbox(d.target.name))
		}
	}
	if d = p.isolate(q, d); d.action != forward {
		return d
	}
	if q.asksIdentity(d.target, d.sandbox) {
		d.action, d.location = describe, p.hubURL(q)
		return d
	}
	if d.target.path == "" && !d.target.byHost {
		d.action, d.location = redirectFolder, q.base.Path+d.target.prefix+"/"
		return d
	}
	if !fleet.IsNative(d.sandbox) {
		d.target = d.target.toPort()
		if able := find.Abilities(); d.target.port != 0 && !able.AnyPort {
			return refuse(op.Errorf(op.Invalid, "provider %s reaches only the server of sandbox %q, not its port %d",
				able.Provider, d.target.name, d.target.port))
		}
	}
	d.wake, d.patience = !q.reader && !q.asksToStayAsleep(d.target), p.wakeWait
	if q.page {
		d.patience = p.pageWait
	}
	if d.wake && q.visit && !q.framed && !d.target.e2b {
		switch stopped := d.sandbox.State == sandbox.Stopped || d.sandbox.State == sandbox.Failed; {
		case q.asksToStart():
			d.started = true
		case stopped:
			d.action = offerStart
		}
	}
	return d
}

// locate finds the target of a request by host name, by headers of E2B clients, or by path. It is the first half of
// a decision, and the whole one for requests that have no target or an invalid one.
func (p policy) locate(q request, find lookup) decision {
	if q.target != nil {
		return decision{action: forward, target: *q.target}
	}
	if p.isControlHost(q.host) && !p.isOwnName(q.host) {
		if err := checkControl(q); err != nil {
			return refuse(err)
		}
	}
	if to, ok := p.locateE2B(q, find); ok {
		return decision{action: forward, target: to}
	}
	if site, _, below := p.findSite(q.host); below {
		if site.Name == "" {
			// The hub serves none of its own content under a domain of sandboxes.
			return decision{action: reject, status: http.StatusNotFound, reason: errors.New("no sandbox has the host name " +
				strconv.Quote(q.host) + "; if it is the hub's own, add it to public_hosts")}
		}
		path := q.url.EscapedPath()
		return decision{action: forward, target: target{name: site.Name, port: site.Port, path: path, full: path, byHost: true}}
	}
	if to, ok := parsePath(q.url.EscapedPath()); ok {
		return decision{action: forward, target: to}
	}
	return decision{action: serveHub}
}

// nameIn returns the name in a path that addresses no sandbox, for an error message.
func nameIn(u *url.URL) string {
	name, _, _ := strings.Cut(strings.TrimPrefix(u.EscapedPath(), "/sandbox/"), "/")
	if plain, err := url.PathUnescape(name); err == nil {
		return plain
	}
	return name
}

// isolate separates the content of a sandbox from the hub's origin, and from other sites of the
// sandbox.
func (p policy) isolate(q request, d decision) decision {
	to := d.target
	passed := q.identity.Via == auth.ViaPass
	switch {
	// A session is valid only for its own site, however the request addresses that.
	case q.identity.Site != "" && q.identity.Site != to.site().Key(), passed != (to.pass != ""):
		if !q.visit {
			return refuse(op.Errorf(op.Denied,
				"the session of this page has ended, or is for another site of a sandbox; open the page from the hub again"))
		}
	// A worker would outlive its page, and see all requests below its path.
	case q.header.Get("Service-Worker") != "" && !to.hasOrigin():
		return refuse(op.Errorf(op.Denied, "a service worker needs an origin; open the page by a host name of the sandbox"))
	case passed || to.hasOrigin() || !q.visit || !q.fromPerson():
		return d
	}
	return p.redirectVisit(q, d)
}

// redirectVisit sends a browser to an address at which the site has its own origin, or none.
func (p policy) redirectVisit(q request, d decision) decision {
	site := d.target.site()
	if !site.HasLabel() {
		site.Name = d.sandbox.ID
	}
	own, named := p.domains.Origin(*q.base, site)
	switch {
	case d.target.pass != "":
		// A pass must not issue another. The browser may have a session that can.
		d.action, d.location = redirectHub, q.base.Path+naming.Path(d.target.name)+d.target.full
	case named && !q.framed:
		d.action, d.location = redirectOrigin, own.Scheme+"://"+own.Host+d.target.sitePath()
		if p.sessions && q.identity.Via != auth.ViaOpen {
			d.session = site
		}
	case !p.sessions:
		return refuse(fault.NoSandbox(d.target.name))
	default:
		hub := q.base.Path
		if _, domain, below := p.findSite(q.host); below {
			hub = p.home(q.base, domain)
		}
		d.action, d.session = redirectPass, site
		d.location, d.path = hub+naming.Path(site.Name)+"/", d.target.full
		if d.path == "" {
			d.path = "/"
		}
	}
	return d
}

// findSite returns the site that a host name addresses.
func (p policy) findSite(host string) (site naming.Site, domain string, below bool) {
	if p.isOwnName(host) || p.isControlHost(host) {
		return naming.Site{}, "", false
	}
	return p.domains.Find(host)
}

// isOwnName reports whether a host under a domain is the hub's own.
func (p policy) isOwnName(host string) bool {
	u := url.URL{Host: host}
	name := strings.TrimSuffix(strings.ToLower(u.Hostname()), ".")
	for _, own := range p.publicHosts {
		u = url.URL{Host: own}
		if strings.EqualFold(u.Hostname(), name) {
			return true
		}
	}
	return false
}

// home is the URL of the hub itself, for a caller that is at a site under a domain.
func (p policy) home(base *url.URL, domain string) string {
	host := domain
	for _, own := range p.publicHosts {
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

// signInURL is the page of the hub that starts a session on the site that a request addresses.
func (p policy) signInURL(host string, u, base *url.URL) string {
	site, domain, below := p.findSite(host)
	if !below || site.Name == "" {
		return ""
	}
	to := p.home(base, domain) + site.Path(u.EscapedPath())
	if u.RawQuery != "" {
		to += "?" + u.RawQuery
	}
	return to
}
