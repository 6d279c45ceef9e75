package auth

import (
	"net/http"
	"net/netip"
	"net/url"
	"strings"
)

// forbidden refuses what no credential may make good: a request that another
// site's page, or a page under a rebound name, makes a person's browser send.
func (g *Guard) forbidden(r *http.Request) *refusal {
	if g.open && !g.knownHost(r) {
		return &refusal{status: http.StatusForbidden, reason: "unknown host", detail: "the host " + shorten(r.Host) +
			" is not a name of this server. Without sign-in only localhost is answered, because a web page could point a name of its own here (DNS rebinding). " +
			"Use localhost, add the name to public_hosts, or configure credentials"}
	}
	if g.foreign(r) {
		return &refusal{status: http.StatusForbidden, reason: "foreign origin", detail: "a web page of another origin " + shorten(claimedOrigin(r)) +
			" sent this request. Add the origin to allowed_origins if its pages may call this server, or the name to public_hosts if it is this server's own"}
	}
	return nil
}

// knownHost reports whether the Host header names this machine. A unix socket
// cannot be reached by a web page, so there any name will do.
func (g *Guard) knownHost(r *http.Request) bool {
	if overUnix(r) {
		return true
	}
	host, port, ok := splitHost(r.Host)
	if !ok {
		return false
	}
	if addr, err := netip.ParseAddr(host); err == nil {
		return addr.Unmap().IsLoopback() || g.c.Insecure || g.publicHost(host, port)
	}
	return localName(host) || g.publicHost(host, port)
}

func localName(host string) bool {
	host = strings.TrimSuffix(host, ".")
	return host == "localhost" || strings.HasSuffix(host, ".localhost")
}

// publicHost looks a name up in PublicHosts; an entry without a port fits any.
func (g *Guard) publicHost(host, port string) bool {
	host = strings.TrimSuffix(host, ".")
	for _, entry := range g.c.PublicHosts {
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

// foreign reports whether a page of another origin sent the request. Browsers
// tell by Origin and Sec-Fetch-Site, which no page can forge; other clients send
// neither. Following a link to a page is not foreign.
func (g *Guard) foreign(r *http.Request) bool {
	elsewhere := false
	for _, site := range r.Header["Sec-Fetch-Site"] {
		elsewhere = elsewhere || site != "same-origin" && site != "none"
	}
	origins := r.Header["Origin"]
	switch {
	case len(origins) > 1:
		return true
	case len(origins) == 1 && g.origins[strings.ToLower(origins[0])]:
		return false
	case followsLink(r):
		return false
	case len(origins) == 1 && isWebSocket(r):
		// Browsers always name the origin of a WebSocket, but do not agree on
		// whether ws:// is the same site as http://.
		return !g.ownOrigin(origins[0], r)
	case len(origins) == 1:
		return elsewhere || !g.ownOrigin(origins[0], r)
	default:
		return elsewhere && !g.origins[claimedOrigin(r)]
	}
}

func isWebSocket(r *http.Request) bool {
	return strings.EqualFold(r.Header.Get("Upgrade"), "websocket")
}

// followsLink is a plain top-level navigation.
func followsLink(r *http.Request) bool {
	return r.Method == http.MethodGet && r.Header.Get("Upgrade") == "" &&
		r.Header.Get("Sec-Fetch-Mode") == "navigate" && r.Header.Get("Sec-Fetch-Dest") == "document"
}

// ownOrigin compares with the host that the request was sent to. Forwarded headers
// have no say: they shape URLs, never access.
func (g *Guard) ownOrigin(origin string, r *http.Request) bool {
	u, err := url.Parse(origin)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.User != nil || u.Path != "" || u.RawQuery != "" || u.Fragment != "" {
		return false
	}
	if r.TLS != nil && u.Scheme != "https" {
		return false
	}
	host, port, ok := splitHost(u.Host)
	if !ok {
		return false
	}
	standard := map[string]string{"http": "80", "https": "443"}[u.Scheme]
	if port == "" {
		port = standard
	}
	if g.publicHost(host, port) {
		return true
	}
	ownHost, ownPort, ok := splitHost(r.Host)
	if ownPort == "" {
		ownPort = standard
	}
	return ok && host == ownHost && port == ownPort
}

// claimedOrigin is the origin that a browser names; where it sends none (frames,
// images), that of the referring page.
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

// allowOrigin sets the headers that let an allowed origin read the answer,
// refusals included.
func (g *Guard) allowOrigin(w http.ResponseWriter, r *http.Request) {
	if len(g.origins) == 0 {
		return
	}
	h := w.Header()
	h.Add("Vary", "Origin")
	origin := r.Header.Get("Origin")
	if !g.origins[strings.ToLower(origin)] {
		return
	}
	h.Set("Access-Control-Allow-Origin", origin)
	h.Set("Access-Control-Allow-Credentials", "true")
	h.Set("Access-Control-Expose-Headers", "Content-Disposition, Content-Range, ETag, Location, Mcp-Session-Id, Retry-After, X-Request-Id")
}

// preflight answers a browser's question about an allowed origin; such a
// question never carries credentials.
func (g *Guard) preflight(w http.ResponseWriter, r *http.Request) bool {
	if r.Method != http.MethodOptions || r.Header.Get("Access-Control-Request-Method") == "" ||
		!g.origins[strings.ToLower(r.Header.Get("Origin"))] {
		return false
	}
	h := w.Header()
	h.Add("Vary", "Access-Control-Request-Headers")
	h.Set("Access-Control-Allow-Methods", "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS")
	if asked := r.Header.Get("Access-Control-Request-Headers"); headerNames(asked) {
		h.Set("Access-Control-Allow-Headers", asked)
	}
	if r.Header.Get("Access-Control-Request-Private-Network") == "true" {
		h.Set("Access-Control-Allow-Private-Network", "true")
	}
	h.Set("Access-Control-Max-Age", "600")
	w.WriteHeader(http.StatusNoContent)
	return true
}

// headerNames reports whether s is a short list of header names, safe to repeat.
func headerNames(s string) bool {
	return s != "" && len(s) <= 1024 && !strings.ContainsFunc(s, func(c rune) bool {
		return !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.ContainsRune("-_, ", c))
	})
}
