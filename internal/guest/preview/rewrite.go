package preview

import (
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/auth"
	"github.com/cove-sandbox/cove/internal/auth/origin"
	"github.com/cove-sandbox/cove/internal/filesystem/subpath"
)

// rewrite changes a request to the sandbox into a request to a service. It keeps the host, because services compare it with
// the origin.
func rewrite(r *httputil.ProxyRequest) {
	t := r.In.Context().Value(forwardingKey{}).(*forwarding)
	out := r.Out
	out.URL = &url.URL{Scheme: "http", Host: net.JoinHostPort("localhost", strconv.Itoa(t.port)),
		RawQuery: r.In.URL.RawQuery, ForceQuery: r.In.URL.ForceQuery}
	subpath.SetPath(out.URL, t.path)
	out.Host = r.In.Host
	h := out.Header
	h.Del(headerPort)
	h.Del("X-Forwarded-Prefix")
	dropCookies(h)

	h.Set("X-Forwarded-Proto", t.base.Scheme)
	h.Set("X-Forwarded-Host", t.base.Host)
	seen := t.base.Path
	if t.strip {
		seen = t.at()
	}
	if seen != "" {
		h.Set("X-Forwarded-Prefix", seen)
	}
	// Every proxy appends the address of its client; a unix socket has none.
	chain := append([]string{}, r.In.Header["X-Forwarded-For"]...)
	if ip, _, err := net.SplitHostPort(r.In.RemoteAddr); err == nil {
		chain = append(chain, ip)
	}
	if len(chain) > 0 {
		h.Set("X-Forwarded-For", strings.Join(chain, ", "))
	}
	if id := op.CallOf(r.In.Context()).ID; id != "" {
		h.Set("X-Request-Id", id)
	}
}

// dropCookies removes session cookies of the sandbox from a request. It does not change other cookies.
func dropCookies(h http.Header) {
	lines := h["Cookie"]
	if !strings.Contains(strings.Join(lines, ";"), auth.CookiePrefix) {
		return
	}
	h.Del("Cookie")
	for _, line := range lines {
		var kept []string
		for part := range strings.SplitSeq(line, ";") {
			if part = strings.TrimSpace(part); part != "" && !strings.HasPrefix(part, auth.CookiePrefix) {
				kept = append(kept, part)
			}
		}
		if len(kept) > 0 {
			h.Add("Cookie", strings.Join(kept, "; "))
		}
	}
}

// restore rewrites a response for the address of the service that the client uses.
func restore(res *http.Response) error {
	t := res.Request.Context().Value(forwardingKey{}).(*forwarding)
	h := res.Header
	h.Del("X-Request-Id") // the server has set its own
	subpath.DropCookies(h, auth.CookiePrefix)
	site := subpath.Site{Host: t.base.Host, Path: t.at(), IsServer: t.isService}
	if !t.strip {
		site.Known = t.prefix
	}
	site.RewriteLocations(h)
	if t.prefix != "" {
		site.Confine(h)
	} else {
		subpath.DropDomains(h)
		origin.DropHostWide(h)
	}
	return nil
}

// isService reports whether a URL is the address of the service on loopback.
func (t *forwarding) isService(u *url.URL) bool {
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	if port != strconv.Itoa(t.port) {
		return false
	}
	ip := net.ParseIP(u.Hostname())
	return strings.EqualFold(u.Hostname(), "localhost") || ip != nil && (ip.IsLoopback() || ip.IsUnspecified())
}
