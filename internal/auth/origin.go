package auth

import (
	"net/http"
	"net/netip"
	"net/url"
	"strings"

	"github.com/cove-sandbox/cove/internal/auth/origin"
)

// origins decides which pages may send requests, by the Origin and Host of a request.
type origins struct {
	allowed  map[string]bool // other origins whose pages may call
	hosts    []string        // further names of this server
	trusted  []netip.Prefix
	insecure bool
}

func newOrigins(c Config) *origins {
	o := &origins{allowed: make(map[string]bool, len(c.AllowedOrigins)), hosts: c.PublicHosts, trusted: c.Trusted, insecure: c.Insecure}
	for _, allowed := range c.AllowedOrigins {
		o.allowed[strings.ToLower(strings.TrimSuffix(allowed, "/"))] = true
	}
	return o
}

// forbidden rejects requests that no credential can permit: those that a page of another site,
// or under a rebound name, makes a browser send and, on an open server, those of other local
// users. A request with a pass may come from a page without an origin.
func (g *Guard) forbidden(r *http.Request, passed bool) *refusal {
	if g.open && !g.origins.knownHost(r) {
		return &refusal{status: http.StatusForbidden, reason: "unknown host", detail: "the host " + shorten(r.Host) +
			" is not a name of this server. Without authentication only localhost is allowed, because the host name " +
			"of a web page could resolve to this server (DNS rebinding). " +
			"Use localhost, add the name to public_hosts, or configure credentials"}
	}
	if passed && g.origins.fromOpaque(r) {
		return g.rejectOtherUser(r)
	}
	if g.origins.foreign(r) {
		return &refusal{status: http.StatusForbidden, reason: "foreign origin", detail: "cross-origin request from " +
			shorten(claimedOrigin(r)) + " to " + shorten(g.origins.scheme(r)+"://"+r.Host) +
			". Add the origin to allowed_origins if its pages may call this server. A reverse proxy must keep the " +
			"Host header and, if it terminates TLS, send X-Forwarded-Proto from loopback or an address in trusted_proxies"}
	}
	return g.rejectOtherUser(r)
}

// fromOpaque reports whether a request can come from a page without an origin.
func (o *origins) fromOpaque(r *http.Request) bool {
	origins := r.Header["Origin"]
	return len(origins) == 0 || len(origins) == 1 && (origins[0] == opaque || o.ownOrigin(origins[0], r))
}

// fromOwnPage reports whether a request is safe, or the browser confirms that it comes from a
// page of this origin.
func (g *Guard) fromOwnPage(r *http.Request) bool {
	safe := r.Method == http.MethodGet || r.Method == http.MethodHead || r.Method == http.MethodOptions
	if safe && r.Header.Get("Upgrade") == "" {
		return true
	}
	// forbidden has already rejected foreign origins.
	return r.Header.Get("Origin") != "" || r.Header.Get("Sec-Fetch-Site") == "same-origin"
}

// knownHost reports whether the Host header is a name of this machine. Any name is accepted on
// a Unix socket, because a web page cannot open one.
func (o *origins) knownHost(r *http.Request) bool {
	if overUnix(r) {
		return true
	}
	host, port, ok := splitHost(r.Host)
	if !ok {
		return false
	}
	if addr, err := netip.ParseAddr(host); err == nil {
		return addr.Unmap().IsLoopback() || o.insecure || o.publicHost(host, port)
	}
	return localName(host) || o.publicHost(host, port)
}

func localName(host string) bool {
	host = strings.TrimSuffix(host, ".")
	return host == "localhost" || strings.HasSuffix(host, ".localhost")
}

// publicHost reports whether a name is in PublicHosts; an entry without a port matches any.
func (o *origins) publicHost(host, port string) bool {
	host = strings.TrimSuffix(host, ".")
	for _, entry := range o.hosts {
		below, wild := strings.CutPrefix(strings.ToLower(entry), "*.")
		name, p, ok := splitHost(below)
		name = strings.TrimSuffix(name, ".")
		if !ok || p != "" && p != port {
			continue
		}
		if name == host && !wild || wild && strings.HasSuffix(host, "."+name) {
			return true
		}
	}
	return false
}

// foreign reports whether a page of another origin sent the request. Browsers send Origin and
// Sec-Fetch-Site, which no page can forge; other clients send neither. A followed link is not
// foreign: whether a link may open a page depends on the route, see Linked.
func (o *origins) foreign(r *http.Request) bool {
	crossSite := false
	for _, site := range r.Header["Sec-Fetch-Site"] {
		crossSite = crossSite || site != "same-origin" && site != "none"
	}
	origins := r.Header["Origin"]
	switch {
	case len(origins) > 1:
		return true
	case len(origins) == 1 && o.allowed[strings.ToLower(origins[0])]:
		return false
	case origin.IsVisit(r) && r.Header.Get("Sec-Fetch-Dest") == "document": // a followed link
		return false
	case len(origins) == 1 && isWebSocket(r):
		// Browsers always send the origin of a WebSocket, but disagree on whether
		// ws:// is the same site as http://.
		return !o.ownOrigin(origins[0], r)
	case len(origins) == 1:
		return crossSite || !o.ownOrigin(origins[0], r)
	default:
		return crossSite && !o.allowed[claimedOrigin(r)]
	}
}

// Linked reports whether a page of another site made the browser open the URL of a request.
// It is false for pages of allowed origins, and for URLs that carry a credential.
func (g *Guard) Linked(r *http.Request) bool {
	if !origin.IsLinked(r) || g.origins.allowed[claimedOrigin(r)] {
		return false
	}
	id, _ := FromContext(r.Context())
	return id.Via != ViaVisit && id.Via != ViaPass
}

func isWebSocket(r *http.Request) bool {
	return strings.EqualFold(r.Header.Get("Upgrade"), "websocket")
}

// ownOrigin reports whether an origin is that of the request itself: its scheme, host and
// port. Other names of this server are other origins, because their pages may not be ours.
func (o *origins) ownOrigin(origin string, r *http.Request) bool {
	u, err := url.Parse(origin)
	if err != nil || u.Scheme != o.scheme(r) || u.User != nil || u.Path != "" || u.RawQuery != "" || u.Fragment != "" {
		return false
	}
	host, port, ok := splitHost(u.Host)
	ownHost, ownPort, ownOK := splitHost(r.Host)
	if port == "" {
		port = standardPorts[u.Scheme]
	}
	if ownPort == "" {
		ownPort = standardPorts[u.Scheme]
	}
	return ok && ownOK && host == ownHost && port == ownPort
}

var standardPorts = map[string]string{"http": "80", "https": "443"}

// scheme returns the scheme that the browser used. A page cannot forge the header of a proxy
// that terminates TLS, because that requires a CORS preflight.
func (o *origins) scheme(r *http.Request) string { return Base(r, o.trusted).Scheme }

// claimedOrigin returns the origin that a browser sends; if it sends none (frames, images),
// that of the referring page.
func claimedOrigin(r *http.Request) string {
	if o := r.Header.Get("Origin"); o != "" {
		return strings.ToLower(o)
	}
	u, err := url.Parse(r.Referer())
	if err != nil || u.Scheme == "" || u.Host == "" {
		return ""
	}
	return strings.ToLower(u.Scheme + "://" + u.Host)
}

// allowOrigin sets the headers that allow an allowed origin to read the response, even a rejection.
func (o *origins) allowOrigin(w http.ResponseWriter, r *http.Request) {
	if len(o.allowed) == 0 {
		return
	}
	h := w.Header()
	h.Add("Vary", "Origin")
	origin := r.Header.Get("Origin")
	if !o.allowed[strings.ToLower(origin)] {
		return
	}
	h.Set("Access-Control-Allow-Origin", origin)
	h.Set("Access-Control-Allow-Credentials", "true")
	h.Set("Access-Control-Expose-Headers", exposed)
}

// exposed are the headers that a page of another origin may read.
const exposed = "Content-Disposition, Content-Range, ETag, Location, Mcp-Session-Id, Retry-After, X-Request-Id"

// preflight answers a CORS preflight request of an allowed origin, or of a page without one
// with a pass. Such a request never carries other credentials. It returns false for other
// requests.
func (o *origins) preflight(w http.ResponseWriter, r *http.Request, passed bool) bool {
	origin := strings.ToLower(r.Header.Get("Origin"))
	if r.Method != http.MethodOptions || r.Header.Get("Access-Control-Request-Method") == "" ||
		!o.allowed[origin] && !(passed && origin == opaque) {
		return false
	}
	h := w.Header()
	h.Add("Vary", "Access-Control-Request-Headers")
	h.Set("Access-Control-Allow-Methods", "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS")
	if requested := r.Header.Get("Access-Control-Request-Headers"); headerNames(requested) {
		h.Set("Access-Control-Allow-Headers", requested)
	}
	if r.Header.Get("Access-Control-Request-Private-Network") == "true" {
		h.Set("Access-Control-Allow-Private-Network", "true")
	}
	h.Set("Access-Control-Max-Age", "600")
	w.WriteHeader(http.StatusNoContent)
	return true
}

// headerNames reports whether s is a short list of header names, safe to echo.
func headerNames(s string) bool {
	return s != "" && len(s) <= 1024 && !strings.ContainsFunc(s, func(c rune) bool {
		return !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.ContainsRune("-_, ", c))
	})
}
